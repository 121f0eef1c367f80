"""What came of a run, in one sentence: a file of its own because the terminal, the page and the lab say the same."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grouprl.record.read import RecordedRun
from grouprl.record.strict import is_number
from grouprl.report.words import counted, duration


def verdict(run: RecordedRun) -> str:
    """What came of the run, in one sentence; values of a damaged summary.json are left out."""
    before, after = run.results("before"), run.results("after")
    start, end = before.get("greedy_accuracy"), after.get("greedy_accuracy")
    if is_number(start) and is_number(end):
        problems = after.get("problems")
        where = f" on {counted(problems, 'held-out problem')}" if type(problems) is int else ""
        return f"Greedy accuracy {_from_to(start, end, '.1%')}{where}{_training_time(run)}."
    (_, accuracy), (_, reward) = run.column("accuracy"), run.column("reward")
    if not accuracy and not reward:
        return "Nothing to judge yet: no step with a reward is recorded."
    said = f"mean reward {_tenths(reward, '.2f')}" if reward else ""
    if accuracy:
        said = f"{_tenths(accuracy, '.1%')} of the sampled completions correct"
    if after and not accuracy:
        return f"{said.capitalize()} over {counted(len(run.metrics), 'step')}{_training_time(run)}."
    return f"Unfinished at step {run.metrics[-1]['step']}: {said}, from the first steps to the last."


def _training_time(run: RecordedRun) -> str:
    seconds = run.summary.get("train_seconds")
    return f" in {duration(seconds)} of training" if is_number(seconds) else ""


def _tenths(values: Sequence[float], form: str) -> str:
    tenth = max(1, len(values) // 10)
    return _from_to(fmean(values[:tenth]), fmean(values[-tenth:]), form)


def _from_to(start: float, end: float, form: str) -> str:
    return f"{start:{form}}\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}{end:{form}}"
