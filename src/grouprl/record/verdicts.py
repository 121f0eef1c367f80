"""Reads the verifier's verdicts of a run's groups, from which a resume rebuilds the pass rates."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from grouprl.record.rollouts import open_recorded

_QUERY = """
SELECT problem_id, COALESCE(SUM(correct), 0), COALESCE(SUM(NOT correct), 0) FROM completions
WHERE step <= ? GROUP BY step, group_index ORDER BY step, group_index
"""


def recorded_verdicts(directory: Path, *, until: int) -> list[tuple[str, int, int]]:
    """Returns (problem id, correct completions, wrong ones) of every group of steps 1 to `until`, in order.

    Raises:
        UserError: `directory` has no rollouts.sqlite.
    """
    with closing(open_recorded(directory)) as database:
        return database.execute(_QUERY, (until,)).fetchall()
