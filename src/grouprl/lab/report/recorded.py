"""Opens what a run recorded, to read: its rollouts, whatever state they are in, and the settings that made them."""

from __future__ import annotations

import copy
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import from_file, with_options
from grouprl.config.own_algorithm import is_in_file
from grouprl.config.yaml_text import read_yaml
from grouprl.files import read_file, refuse_depth
from grouprl.leaves import find_leaf
from grouprl.record.layout import RunDirectory
from grouprl.record.rollouts import empty_rollouts, open_recorded
from grouprl.record.rows import checked_rows
from grouprl.types import UserError

_SECONDS = 5.0  # that the database may be asked, which takes 0.3 s of a step of 10,000; a table may be a slow view
_WORK = 10_000  # of its instructions between two looks at the clock


@contextmanager
def recorded(folder: Path) -> Iterator[sqlite3.Connection]:
    """The rollouts of a run as they are now: queries in the block see one state, though the run continues.

    A run that has recorded none yet has an empty database. Rows come as `checked_rows`.

    Raises:
        UserError: it cannot be read, or not in 5 seconds.
    """
    path, ends = RunDirectory(folder).rollouts, time.monotonic() + _SECONDS
    try:
        with closing(open_recorded(folder) if path.is_file() else empty_rollouts()) as database:
            database.row_factory = checked_rows(path)
            database.set_progress_handler(lambda: time.monotonic() > ends, _WORK)
            database.execute("BEGIN")
            yield database
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{path}: expected readable rollouts, got '{error}': restore the file; a run in progress also "
            "needs its -wal file and a writable folder"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The run's config.yaml.

    Raises:
        UserError: it is missing, no mapping in YAML, or `steps` is no number.
    """
    place = RunDirectory(folder).config
    text = read_file(place)
    if text is None:
        raise UserError(f"{place}: expected the settings of the run, found no such file: restore it")
    try:
        found = copy.deepcopy(_read_once(text.decode("utf-8", "replace")))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{place}: expected YAML ({type(error).__name__}: {error}): restore the file") from None
    if not isinstance(found, dict):
        raise UserError(f"{place}: expected settings, got {str(found)[:60]!r}: restore the file")
    refuse_depth(found, place)
    steps = found.get("steps")
    if steps is not None and type(steps) is not int:
        raise UserError(f"{place}: steps: expected a whole number, got {steps!r:.60}: restore the file")
    return found


@lru_cache(maxsize=16)
def _read_once(text: str) -> Any:
    # PyYAML takes 40 ms for a configuration, and a report of 24 completions asks for the same one 35 times.
    return read_yaml(text)


def run_algorithm(config: Mapping[str, Any]) -> Algorithm:
    """The algorithm in a run's config.yaml; GRPO where it says nothing.

    Raises:
        UserError: it says something else.
    """
    section = config.get("algorithm", {})
    try:
        if is_in_file(name := section.get("name", "grpo")):
            trust = find_leaf("received.trust")
            if trust is not None:
                trust.load_known_algorithm(name)
            return from_file(name, section)
        return with_options(NAMED.get(name, NAMED["grpo"]), section)
    except (AttributeError, TypeError, UserError) as error:
        raise UserError(
            f"config.yaml: expected the options of an algorithm under `algorithm`, got {str(section)[:60]!r} "
            f"({error}): restore the file"
        ) from None


def missing_problem(path: Path, step: int, group: int) -> UserError:
    """What to raise where the table `problems` does not have that of a group."""
    return UserError(f"{path}: expected the problem of step {step}, group {group}, found none: restore the file")
