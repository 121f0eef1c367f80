"""What came of a run, in one sentence, alike in the terminal, the page and the lab; numbers as people say them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grouprl.files import is_number
from grouprl.record.layout import has_failed
from grouprl.record.read import RecordedRun, measure_of
from grouprl.types import counted


def verdict(run: RecordedRun) -> str:
    """What came of the run, in one sentence; it skips values of a damaged summary.json."""
    if has_failed(run.summary):
        step, reason, frame = (run.summary.get(key) for key in ("step", "reason", "frame"))
        where = f" ({frame})" if frame and str(frame) not in str(reason) else ""
        return f"Failed {f'in step {step}' if step else 'before the first step'}: {reason}{where}"
    before, after = run.results("before"), run.results("after")
    start, end = before.get("greedy_accuracy"), after.get("greedy_accuracy")
    is_by_reward = measure_of(run.summary, run.evaluations) == "reward"
    problems = after.get("problems")
    where = f" on {counted(problems, 'held-out problem')}" if type(problems) is int else ""
    first, last = before.get("reward"), after.get("reward")
    if is_by_reward and is_number(first) and is_number(last):
        return f"Mean reward {_from_to(first, last, '.2f')}{_change(run)}{where}{_training_time(run)}."
    if not is_by_reward and is_number(start) and is_number(end):
        return f"Greedy accuracy {_from_to(start, end, '.1%')}{where}{_training_time(run)}."
    (_, accuracy), (_, reward) = run.column("accuracy"), run.column("reward")
    if not accuracy and not reward:
        return "No result: the run has recorded no step with a reward."
    said = f"mean reward {_tenths(reward, '.2f')}" if reward else ""
    if accuracy and not is_by_reward:
        said = f"{_tenths(accuracy, '.1%')} of the sampled completions correct"
    if after and (is_by_reward or not accuracy):
        return f"{said.capitalize()} over {counted(len(run.metrics), 'step')}{_training_time(run)}."
    return f"Unfinished at step {run.metrics[-1]['step']}: {said}, from the first steps to the last."


def _change(run: RecordedRun) -> str:
    """The paired difference of the mean reward, with its interval."""
    change = run.summary.get("change")
    reward = change.get("reward") if isinstance(change, dict) else None
    mean, interval = (reward.get("mean"), reward.get("interval")) if isinstance(reward, dict) else (None, None)
    if not is_number(mean) or not isinstance(interval, list) or len(interval) != 2 or not all(map(is_number, interval)):
        return ""
    return f" ({mean:+.2f}, 95% interval {interval[0]:+.2f} to {interval[1]:+.2f})"


def _training_time(run: RecordedRun) -> str:
    seconds = run.summary.get("train_seconds")
    return f" in {duration(seconds)} of training" if is_number(seconds) else ""


def _tenths(values: Sequence[float], form: str) -> str:
    tenth = max(1, len(values) // 10)
    return _from_to(fmean(values[:tenth]), fmean(values[-tenth:]), form)


def _from_to(start: float, end: float, form: str) -> str:
    return f"{start:{form}}\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}{end:{form}}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(98.4), duration(754), duration(11520)
    ('98 s', '12 min 34 s', '3 h 12 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 2:
        return f"{round(seconds)} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
