"""Every query of rollouts.sqlite, for the page, the report, exports and resumes; rows cannot be changed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from grouprl.record.layout import RunDirectory
from grouprl.record.rollouts import empty_rollouts, open_recorded
from grouprl.record.rows import checked_rows
from grouprl.types import UserError

Key = tuple[int, int, int]
"""A completion: its step, its group there and its index in the group."""

_SECONDS = 5.0  # that the database may be asked, which takes 0.3 s of a step of 10,000; a table may be a slow view
_WORK = 10_000  # of its instructions between two looks at the clock
_KEY = "(step, group_index, completion_index)"
_BACKWARDS = "ORDER BY step DESC, group_index DESC, completion_index DESC"
_PROMPT = "(SELECT own(prompt) FROM problems WHERE problems.problem_id = completions.problem_id)"


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


def completion_rows(
    database: sqlite3.Connection, columns: str, step: int, group: int | None = None, index: int | None = None
) -> list[sqlite3.Row]:
    """Columns of the completions of a step, of a group or of one, in their order, beside their problem and episode."""
    keys = {"step": step, "group_index": group, "completion_index": index}
    values = {name: value for name, value in keys.items() if value is not None}
    return database.execute(
        f"SELECT {columns} FROM completions LEFT JOIN problems USING (problem_id) LEFT JOIN episodes USING {_KEY} "
        f"WHERE {' AND '.join(f'{name} = :{name}' for name in values)} ORDER BY group_index, completion_index",
        values,
    ).fetchall()


def all_rows(database: sqlite3.Connection) -> Iterator[sqlite3.Row]:
    """Every completion of a run with its problem, in the order of the run; one query, which reads one snapshot."""
    return database.execute(
        f"SELECT *, components AS rewards FROM completions JOIN problems USING (problem_id) ORDER BY {_KEY[1:-1]}"
    )


def first_and_last_step(database: sqlite3.Connection) -> tuple[int | None, int | None]:
    """The first and the last recorded step; None before the first."""
    first, last = database.execute(
        "SELECT (SELECT MIN(step) FROM completions), (SELECT MAX(step) FROM completions)"
    ).fetchone()
    return first, last


def page_of_groups(
    database: sqlite3.Connection, step: int | None, *, offset: int, limit: int
) -> tuple[int, list[sqlite3.Row]]:
    """The number of groups of a step, and the completions without texts of `limit` of them after `offset` others."""
    total = database.execute("SELECT COUNT(DISTINCT group_index) FROM completions WHERE step = ?", (step,)).fetchone()
    rows = database.execute(
        "WITH page AS (SELECT DISTINCT group_index FROM completions WHERE step = ?1 ORDER BY 1 LIMIT ?2 OFFSET ?3) "
        "SELECT group_index, completion_index, problem_id, reward, advantage, correct, length, stop_reason, "
        "invalid_reason FROM page CROSS JOIN completions USING (group_index) WHERE step = ?1 "
        "ORDER BY group_index, completion_index",
        (step, limit, offset),
    ).fetchall()
    return total[0], rows


def problem_rows(database: sqlite3.Connection, columns: str, problems: Collection[str]) -> dict[str, sqlite3.Row]:
    """Columns of problems by their id; a problem that is not recorded is absent."""
    query = f"SELECT problem_id, {columns} FROM problems WHERE problem_id IN ({', '.join('?' * len(problems))})"
    return {row["problem_id"]: row for row in database.execute(query, tuple(problems))}


def ends_of_problems(database: sqlite3.Connection, most: int) -> list[sqlite3.Row]:
    """The first and the last of the prompts and of the messages of `most` problems, by the alphabet."""
    return [
        database.execute(
            f"SELECT COALESCE({end}(prompt), '') AS prompt, {end}(messages) AS messages, COUNT(*) AS all_of_them, "
            f"COUNT(messages) AS chats FROM (SELECT prompt, messages FROM problems LIMIT {most:d})"
        ).fetchone()
        for end in ("MIN", "MAX")
    ]


def visits(
    database: sqlite3.Connection, problem: str, *, before: tuple[int, int], limit: int
) -> tuple[int, list[sqlite3.Row]]:
    """The number of groups of a problem, and the completions of the newest `limit` before a (step, group)."""
    # Every group has a completion 0: the index of those alone is a G-th as large.
    of_problem = "FROM completions WHERE problem_id = ? AND completion_index = 0"
    total = database.execute(f"SELECT COUNT(*) {of_problem}", (problem,)).fetchone()
    rows = database.execute(
        f"WITH visits AS (SELECT step, group_index {of_problem} AND (step, group_index) < (?, ?) "
        "ORDER BY step DESC, group_index DESC LIMIT ?) "
        "SELECT step, group_index, completion_index, text, reward, correct, length, stop_reason, invalid_reason "
        "FROM visits CROSS JOIN completions USING (step, group_index) "
        "ORDER BY step DESC, group_index DESC, completion_index",
        (problem, *before, limit),
    ).fetchall()
    return total[0], rows


def stage_rows(database: sqlite3.Connection, step: int) -> list[sqlite3.Row]:
    """The stages of the group that a step watched, see `lab.explain_group`."""
    return database.execute("SELECT group_index, stage, value FROM stages WHERE step = ?", (step,)).fetchall()


def steps_with_stages(database: sqlite3.Connection) -> list[int]:
    """The steps that watched a group, ascending."""
    return [row["step"] for row in database.execute("SELECT DISTINCT step FROM stages ORDER BY step")]


def keys_before(database: sqlite3.Connection, before: Key, *, first_step: int, limit: int) -> list[Key]:
    """The newest completions before one, back to a step."""
    rows = database.execute(
        f"SELECT {_KEY[1:-1]} FROM completions WHERE {_KEY} < (?, ?, ?) AND step >= ? {_BACKWARDS} LIMIT ?",
        (*before, first_step, limit),
    )
    return [(row["step"], row["group_index"], row["completion_index"]) for row in rows]


def matching_rows(
    database: sqlite3.Connection, before: Key, last: Key, terms: Mapping[str, Any], limit: int
) -> list[sqlite3.Row]:
    """The newest completions before one, back to another, to which all `terms` apply: conditions with their values.

    `:value` in a condition is its value, and `PROMPT` the problem's prompt by the function `own` of the database; with
    such a condition the rows have a `prompt`.
    """
    names = {f"t{number}": value for number, value in enumerate(terms.values())}
    conditions = [term.replace(":value", f":{name}") for term, name in zip(terms, names, strict=True)]
    prompt = ", PROMPT AS prompt" if any("PROMPT" in term for term in terms) else ""
    query = (
        "SELECT step, group_index, completion_index, problem_id, text, reward, advantage, length, stop_reason, "
        f"invalid_reason, correct{prompt} FROM completions WHERE {_KEY} < (:b0, :b1, :b2) AND "
        f"{_KEY} >= (:l0, :l1, :l2) AND {' AND '.join(conditions) or 'TRUE'} {_BACKWARDS} LIMIT :most"
    )
    bounds = dict(zip(("b0", "b1", "b2", "l0", "l1", "l2"), (*before, *last), strict=True))
    return database.execute(query.replace("PROMPT", _PROMPT), {**names, **bounds, "most": limit}).fetchall()


def copy_steps(copy: sqlite3.Connection, source: Path, steps: Sequence[int]) -> None:
    """Copies the rows of some steps of a run, and its problems, into another database.

    A step at a time: as long as the rows of a run are being read, that run can neither end nor be resumed.
    """
    open_recorded(source).close()  # raises where it is no database of a run
    location = f"file:{quote(str(RunDirectory(source).rollouts.resolve()))}?mode=ro"
    parts = [(table, f"WHERE step = {step:d}") for step in steps for table in ("completions", "stages", "episodes")]
    for table, which in [*parts, ("problems", "")]:
        copy.execute("ATTACH ? AS source", (location,))
        with copy:
            # By name: the table of a run from elsewhere may have another order.
            columns = ", ".join(name for _, name, *_ in copy.execute(f"PRAGMA source.table_info({table})"))
            copy.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM source.{table} {which}")
        copy.execute("DETACH source")


def invalid_reasons(directory: Path, most: int = 20) -> list[tuple[str, int, int, int]]:
    """Returns the most frequent reasons why completions were invalid; empty without rollouts.

    Each stands with its number of completions, its first and its last step.
    """
    return _all(
        directory,
        "SELECT invalid_reason, COUNT(*), MIN(step), MAX(step) FROM completions WHERE invalid_reason IS NOT NULL "
        f"GROUP BY 1 ORDER BY 2 DESC LIMIT {most:d}",
    )


def recorded_verdicts(directory: Path, *, until: int) -> list[tuple[str, int, int]]:
    """Returns (problem id, correct completions, wrong ones) of every group of steps 1 to `until`, in order.

    A resume rebuilds the pass rates from them.

    Raises:
        UserError: see `open_recorded`.
    """
    return _all(
        directory,
        "SELECT problem_id, COALESCE(SUM(correct), 0), COALESCE(SUM(NOT correct), 0) FROM completions "
        f"WHERE step <= {until:d} GROUP BY step, group_index ORDER BY step, group_index",
        needed=True,
    )


def recorded_counts(directory: Path, until: int) -> dict[int, tuple[int, int]]:
    """Returns the groups and the tokens of each step up to `until`; empty without rollouts."""
    query = "SELECT step, COUNT(DISTINCT group_index), SUM(length) FROM completions WHERE step <= {:d} GROUP BY step"
    return {step: (groups, tokens) for step, groups, tokens in _all(directory, query.format(until))}


def wrong_lengths(directory: Path) -> list[tuple[int, float]]:
    """Returns the steps with wrong completions, and their mean length in tokens; empty without rollouts."""
    return _all(directory, "SELECT step, AVG(length) FROM completions WHERE correct = 0 GROUP BY step ORDER BY step")


def _all(directory: Path, query: str, *, needed: bool = False) -> list[Any]:
    """The rows of a query, which are not checked; none where a run without rollouts needs none."""
    if not needed and not RunDirectory(directory).rollouts.is_file():
        return []
    with closing(open_recorded(directory)) as database:
        return database.execute(query).fetchall()
