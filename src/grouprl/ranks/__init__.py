"""Hides how many processes compute a run: `Ranks` divides work among them and gathers what they made.

In: the environment variables of torchrun and the section `distributed`. Out: one `Ranks` for a run; that of a single
process has world 1, and its operations change nothing. Never knows what it divides, and never starts a process.
"""

from grouprl.ranks.launch import may_report, note_begun, open_ranks, show_errors_once, was_begun
from grouprl.ranks.ranks import LeftError, Ranks
from grouprl.ranks.shares import TreeSum, shares

__all__ = [
    "LeftError",
    "Ranks",
    "TreeSum",
    "may_report",
    "note_begun",
    "open_ranks",
    "shares",
    "show_errors_once",
    "was_begun",
]
