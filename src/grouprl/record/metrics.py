"""The metrics of a run: name, unit, meaning, formula, when to worry.

metrics.json holds them; the page reads the same file, and the site has a table of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("metrics.json")


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
    held_out: bool = False  # whether evaluations record it, not steps


METRICS = {name: Metric(name, **told) for name, told in json.loads(FILE.read_text(encoding="utf-8")).items()}


def metric_of(name: str) -> Metric | None:
    """Finds the definition of a recorded name, such as rewards/correct_answer/mean; None when there is none."""
    if name in METRICS:
        return METRICS[name]
    patterns = (metric for metric in METRICS.values() if "NAME" in metric.name)
    return next((metric for metric in patterns if re.fullmatch(metric.name.replace("NAME", ".+"), name)), None)
