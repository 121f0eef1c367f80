"""Finds, before the first step, the gold answers that a run's built-in rewards cannot read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from reprlib import repr as shown

from grouprl.rewards.batch_calls import signature_of
from grouprl.rewards.functions import FromFile, WeightedReward
from grouprl.rewards.invalid import Invalid
from grouprl.rewards.keywords import call_keywords
from grouprl.rewards.scorer import Scorer
from grouprl.rewards.workers.calling import gather
from grouprl.tasks.mixture import PartReward
from grouprl.types import Completion, Group, Problem, StopReason, UserError

_IN_A_CALL = 32  # problems; a gold answer is read in at most 0.1 s, and a call may take seconds
_NAMED = 3
_NOTHING = Completion(0, (), (), (), "", StopReason.END, 0)


def check_golds(scorer: Scorer, parts: Iterable[Sequence[Problem]]) -> None:
    """Scores an empty completion of each problem that has an answer; GroupRL's own rewards alone are called.

    Args:
        scorer: its workers read the answers, with their limits.
        parts: sequences of problems; problems that are made on access are not looked at.

    Raises:
        UserError: rewards cannot read some answers; it names their files and lines.
    """
    read = (problem for part in parts for problem in in_memory(part))
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
            named = ", ".join(f"{one.place} ({shown(one.columns['answer'])})" for one, _ in found[:_NAMED])
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            raise UserError(
                f"reward {reward.name}: expected an answer that it reads in each of {len(given)} problems, got "
                f"{len(found)} that it does not, in {named}{more} ({found[0][1]}): correct or remove these rows, or "
                "take another reward"
            )


def in_memory(part: Sequence[Problem]) -> Sequence[Problem]:
    """The problems of a sequence that exist already."""
    return part if isinstance(part, list | tuple) else getattr(part, "in_memory", ())


def _reads_answers(reward: WeightedReward, scorer: Scorer) -> bool:
    function = reward.function
    parts = function.functions.values() if isinstance(function, PartReward) else [function]
    own = all((getattr(one, "__module__", None) or type(one).__module__).startswith("grouprl.") for one in parts)
    if not own or reward.in_process or isinstance(function, FromFile):
        return False
    return isinstance(function, PartReward) or "answer" in signature_of(reward, scorer.pool).required
