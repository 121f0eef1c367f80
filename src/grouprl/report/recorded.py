"""Opens what a run recorded, to read: its rollouts, whatever state they are in, and the algorithm that made them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import with_options
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_rewards
from grouprl.record.rollouts import SCHEMA, open_recorded
from grouprl.record.rows import checked_rows
from grouprl.record.strict import is_number
from grouprl.types import UserError

_SECONDS = 5.0  # that the database may be asked, which takes 0.3 s of a step of 10,000; a table may be a slow view
_WORK = 10_000  # of its instructions between two looks at the clock


@contextmanager
def recorded(folder: Path) -> Iterator[sqlite3.Connection]:
    """The rollouts of a run as they are now: what is asked inside the block sees one state, though the run goes on.

    A run that has recorded none yet has an empty database. Rows come as `checked_rows`.

    Raises:
        UserError: an older version made the file, it cannot be read, or not in 5 seconds.
    """
    path, ends = RunDirectory(folder).rollouts, time.monotonic() + _SECONDS
    try:
        with closing(_opened(path)) as database:
            database.row_factory = checked_rows(path)
            database.set_progress_handler(lambda: time.monotonic() > ends, _WORK)
            database.execute("BEGIN")
            yield database
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{path}: expected rollouts that can be read, got '{error}': restore the file; that of a run in progress "
            "needs its -wal file beside it, and a folder that can be written to"
        ) from error


def run_algorithm(config: Mapping[str, Any]) -> Algorithm:
    """The algorithm in a run's config.yaml; GRPO where it says nothing.

    Raises:
        UserError: it says something else.
    """
    section = config.get("algorithm", {})
    try:
        known = NAMED.get(section.get("name", "grpo"), NAMED["grpo"])
        return with_options(known, section)
    except (AttributeError, TypeError, UserError) as error:
        raise UserError(
            f"config.yaml: expected the options of an algorithm under `algorithm`, got {str(section)[:60]!r} "
            f"({error}): restore the file, or look at the run with the version that made it"
        ) from None


def reward_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, float]:
    """What each reward counts in the total, by name; the length penalty is added as it is.

    As the run recorded it, or else, of a record without, as its config.yaml lists them (a task's own are in none).

    Raises:
        UserError: one of the two files is damaged.
    """
    listed, recorded_ones = config.get("rewards"), read_rewards(folder).weights
    if not isinstance(listed, list | None):
        raise UserError(f"config.yaml: rewards: expected a list, got {listed!r:.60}: restore the file")
    named = [reward for reward in listed or () if isinstance(reward, Mapping) and "name" in reward]
    pairs = [*((reward["name"], reward.get("weight", 1.0)) for reward in named), *recorded_ones.items()]
    for name, weight in pairs:
        if not isinstance(name, str) or not is_number(weight):
            raise UserError(
                f"{folder}: expected the name and the weight of each reward in config.yaml and rewards.json, "
                f"got {name!r:.60} and {weight!r:.60}: restore the files"
            )
    return {**dict(pairs), "soft_overlong": 1.0}


def missing_problem(path: Path, step: int, group: int) -> UserError:
    """What to raise where the table `problems` does not have that of a group."""
    return UserError(f"{path}: expected the problem of step {step}, group {group}, found none: restore the file")


def _opened(path: Path) -> sqlite3.Connection:
    database = open_recorded(path.parent) if path.is_file() else _empty()
    with ExitStack() as on_error:
        on_error.callback(database.close)
        found = _columns(database)
        if found and (missing := _expected() - found):
            raise UserError(
                f"{path}: expected a table of completions with the columns {', '.join(sorted(missing))}, found none: "
                "an older version of GroupRL recorded this run; look at it with that one"
            )
        on_error.pop_all()
    if found:
        return database
    database.close()  # the run has just made the file, and no table in it yet
    return _empty()


def _empty() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    return database


@cache
def _expected() -> frozenset[str]:
    with closing(_empty()) as database:
        return _columns(database)


def _columns(database: sqlite3.Connection) -> frozenset[str]:
    return frozenset(row[1] for row in database.execute("PRAGMA table_info(completions)"))
