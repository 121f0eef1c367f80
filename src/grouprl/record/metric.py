"""The form of a metric's definition; `metrics.py` and `token_ledger.py` hold the definitions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One number that a run records at each step or evaluation; NAME in a name stands for any text."""

    name: str
    label: str  # on a chart
    unit: str  # empty for a number without one
    meaning: str  # plain English, in Markdown; begins with a noun
    worry: str  # follows "worry"
    formula: str = ""  # r_i reward, T_i tokens, w weight of a token, A advantage; N completions, G in a group
    section: str = ""  # explanation in lab/report/static/sections.json
    trl: str = ""  # TRL's name, if the meaning is the same
