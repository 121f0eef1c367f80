"""What the task's verifier said of every group of a run: all that is needed to rebuild its pass rates."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from grouprl.record.rollouts import open_recorded

_QUERY = """
SELECT problem_id, COALESCE(SUM(correct), 0), COALESCE(SUM(NOT correct), 0) FROM completions
WHERE step <= ? GROUP BY step, group_index ORDER BY step, group_index
"""


def recorded_verdicts(directory: Path, *, until: int) -> list[tuple[str, int, int]]:
    """(problem id, correct completions, wrong ones) of every group up to and with step `until`, as they came.

    Raises:
        UserError: when `directory` has no rollouts.sqlite.
    """
    with closing(open_recorded(directory)) as database:
        return database.execute(_QUERY, (until,)).fetchall()
