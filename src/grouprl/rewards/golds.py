"""Finds, before the first step, gold answers that a run's rewards cannot read, and ground truths that they lack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from reprlib import repr as shown

from grouprl.scoring.batch_calls import signature_of
from grouprl.scoring.calling import gather
from grouprl.scoring.compute_score import truth_of
from grouprl.scoring.functions import FromFile, WeightedReward
from grouprl.scoring.invalid import Invalid
from grouprl.scoring.keywords import call_keywords
from grouprl.scoring.scorer import Scorer
from grouprl.tasks.mixture import PartReward
from grouprl.types import Completion, Group, Problem, StopReason, UserError

_IN_A_CALL = 32  # problems; a gold answer is read in at most 0.1 s, and a call may take seconds
_NAMED = 3
_NOTHING = Completion(0, (), (), (), "", StopReason.END, 0)


def check_golds(scorer: Scorer, parts: Iterable[Sequence[Problem]]) -> None:
    """Scores an empty completion of each problem that has an answer; GroupRL's own rewards alone are called.

    Functions in verl's form need a ground truth in every problem, else its completions are invalid, one by one.

    Args:
        scorer: its workers read the answers, with their limits.
        parts: sequences of problems; problems that are made on access are not looked at.

    Raises:
        UserError: rewards cannot read some answers, or some problems lack a ground truth; it names files and lines.
    """
    held = (part if isinstance(part, list | tuple) else getattr(part, "in_memory", ()) for part in parts)
    read = [*{id(problem): problem for part in held for problem in part}.values()]  # a split may be evaluated, too
    if 0 < len(lacking := [one for one in read if truth_of(one.columns) is None]) < len(read):
        for reward in scorer.called:
            if signature_of(reward, scorer.pool).one_of:
                raise UserError(
                    f"reward {reward.name}: expected a ground_truth in each of {len(read)} problems, got "
                    f"{_listed(lacking, 'ground_truth')} without one: add it, or remove these rows"
                )
    given = [problem for problem in read if problem.place and problem.columns.get("answer") is not None]
    readers = [reward for reward in scorer.called if given and _reads_answers(reward, scorer)]
    pending = [
        (reward, part, scorer.pool.submit(reward.name, call_keywords([Group(one, (), (_NOTHING,)) for one in part])))
        for reward in readers
        for part in (given[at : at + _IN_A_CALL] for at in range(0, len(given), _IN_A_CALL))
    ]
    for reward in readers:
        found = [
            (problem, value.reason)
            for caller, part, values in pending
            if caller is reward
            for problem, value in zip(part, gather(values).values, strict=True)
            if isinstance(value, Invalid)
        ]
        if found:
            named = _listed([one for one, _ in found], "answer")
            raise UserError(
                f"reward {reward.name}: expected an answer that it reads in each of {len(given)} problems, got "
                f"{len(found)} that it does not, in {named} ({found[0][1]}): correct or remove these rows, or "
                "take another reward"
            )


def _listed(problems: Sequence[Problem], column: str) -> str:
    named = ", ".join(f"{one.place or one.id} ({shown(one.columns.get(column))})" for one in problems[:_NAMED])
    return named + (f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else "")


def _reads_answers(reward: WeightedReward, scorer: Scorer) -> bool:
    function = reward.function
    parts = function.functions.values() if isinstance(function, PartReward) else [function]
    own = all((getattr(one, "__module__", None) or type(one).__module__).startswith("grouprl.") for one in parts)
    if not own or reward.in_process or isinstance(function, FromFile):
        return False
    return isinstance(function, PartReward) or "answer" in signature_of(reward, scorer.pool).required
