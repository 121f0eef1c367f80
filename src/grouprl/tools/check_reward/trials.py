"""Scores the completions with a run's rewards: as groups, like in the run, and then each alone, with its time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grouprl.models.prompts import authored_completion
from grouprl.rewards.scorer import Scorer
from grouprl.run.terminal import Advance
from grouprl.tools.check_reward.tricks import KINDS, Kind
from grouprl.types import Group, Problem, RewardOutcome

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Trial:
    """One completion and its outcomes, call by call."""

    problem_id: str
    kind: Kind
    text: str
    tokens: int  # the end token included
    outcome: RewardOutcome  # from a call with the problem's other completions
    alone: tuple[RewardOutcome, ...] = ()  # from a call with this completion alone, and from another if they differ
    seconds: float | None = None  # time of the first call alone; None = not called again, because it was invalid


def score_trials(
    scorer: Scorer,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    texts: Sequence[Mapping[str, str]],
    advance: Advance,
) -> list[Trial]:
    """Calls every reward on every group, then on each completion alone; if these differ, alone once more.

    Args:
        scorer: scores with the run's rewards; it must not stop at invalid completions (max_invalid=1).
        tokenizer: of the policy.
        problems: [P].
        texts: of each problem's completions, by the name of their kind: [P] of `trial_completions`.
        advance: called with the number of scored completions.
    """
    groups = [
        Group(problem, (), tuple(authored_completion(n, text, tokenizer) for n, text in enumerate(row.values())))
        for problem, row in zip(problems, texts, strict=True)
    ]
    begun, together = [scorer.begin(group) for group in groups], []
    compared = any(reward.scope == "batch" for reward in scorer.rewards)
    for pending in [begun] if compared else [[one] for one in begun]:
        together += (scored := scorer.finish(pending, tokenizer))
        advance(sum(map(len, scored)))
    trials = []
    for group, row, outcomes in zip(groups, texts, together, strict=True):
        for name, completion, outcome in zip(row, group.completions, outcomes, strict=True):
            trial = Trial(group.problem.id, _BY_NAME[name], completion.text, len(completion), outcome)
            if outcome.valid:
                single = replace(group, completions=(completion,))
                started = time.perf_counter()
                alone = scorer.finish([scorer.begin(single)], tokenizer)[0]
                seconds = time.perf_counter() - started
                if alone[0].components != outcome.components:
                    alone += scorer.finish([scorer.begin(single)], tokenizer)[0]
                trial = replace(trial, alone=alone, seconds=seconds)
            trials.append(trial)
            advance(1)
    return trials
