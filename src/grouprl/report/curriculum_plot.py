"""How the problems of a run stand, step by step. Importing this brings in matplotlib."""

from __future__ import annotations

from matplotlib.figure import Figure

from grouprl.record.read import RecordedRun
from grouprl.report.drawing import BLUE, RED, SKY, Plot, stack


def _standing(run: RecordedRun, figure: Figure) -> None:
    steps, seen = run.column("curriculum/seen")
    _, hopeless = run.column("curriculum/hopeless")
    _, solved = run.column("curriculum/solved")
    if steps and len(steps) == len(hopeless) == len(solved):
        edge = [total - below - above for total, below, above in zip(seen, hopeless, solved, strict=True)]
        axes = figure.subplots()
        stack(axes, steps, {"hopeless": hopeless, "edge": edge, "solved": solved}, (RED, BLUE, SKY))
        axes.set_ylabel("problems seen")
        axes.set_ylim(bottom=0)


STANDING: Plot[RecordedRun] = Plot(
    "curriculum",
    "Where the problems stand",
    "Problems seen so far by their estimated pass rate: solved (90 % and more), hopeless (10 % and less), and at the "
    "edge between; worry when the edge runs out: what is left teaches nothing, or too little for its cost.",
    _standing,
)
