"""Which steps a run directory records as a whole."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_json_lines
from grouprl.record.rollouts import open_recorded

_COUNTED = ("groups/sampled", "completion_tokens")


def incomplete_steps(directory: Path, until: int, *, evaluated: bool = True) -> tuple[int, ...]:
    """Returns the steps of 0 to `until` that are not recorded, or recorded in part, ascending.

    A step is whole with one line in metrics.jsonl, and with the groups and tokens in rollouts.sqlite that it names;
    step 0, of a run that is `evaluated`, with the evaluation before training.

    Raises:
        UserError: a file is damaged.
    """
    files = RunDirectory(directory)
    before = not evaluated or any(row["step"] == 0 for row in read_json_lines(files.evaluations))
    lines = read_json_lines(files.metrics)
    times, rows = Counter(row["step"] for row in lines), {row["step"]: row for row in lines}
    recorded = _rollouts(directory, until)
    lacking = tuple(
        step
        for step in range(1, until + 1)
        if times[step] != 1 or recorded.get(step) != tuple(rows[step].get(name) for name in _COUNTED)
    )
    return lacking if before or not until else (0, *lacking)


def _rollouts(directory: Path, until: int) -> dict[int, tuple[int, int]]:
    """Returns the groups and the tokens of each step."""
    query = "SELECT step, COUNT(DISTINCT group_index), SUM(length) FROM completions WHERE step <= ? GROUP BY step"
    if not RunDirectory(directory).rollouts.is_file():
        return {}
    with closing(open_recorded(directory)) as database:
        return {step: (groups, tokens) for step, groups, tokens in database.execute(query, (until,))}
