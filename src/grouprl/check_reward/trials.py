"""Scores the completions with a run's rewards: as groups, like in the run, and then each alone, with its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grouprl.check_reward.tricks import KINDS, Kind
from grouprl.models import authored_completion
from grouprl.report.terminal import Advance
from grouprl.scoring.scorer import Scorer
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


@dataclass(frozen=True)
class TrialScorer:
    """Scores groups as a run does.

    Args:
        scorer: must not stop at invalid completions (max_invalid=1).
        tokenizer: of the policy; process rewards need it.
    """

    scorer: Scorer
    tokenizer: PreTrainedTokenizerBase

    def begin(self, group: Group) -> Callable[[], tuple[RewardOutcome, ...]]:
        """Starts the calls for a group; returns a function that waits for its outcomes [G]."""
        pending = self.scorer.begin(group)
        return lambda: self.scorer.finish([pending], self.tokenizer)[0]

    def one(self, single: Group) -> RewardOutcome:
        """Scores a group of one completion."""
        return self.begin(single)()[0]


def score_trials(
    scorer: TrialScorer, problems: Sequence[Problem], texts: Sequence[Mapping[str, str]], advance: Advance
) -> list[Trial]:
    """Calls every reward on every group, then on each completion alone; if these differ, alone once more.

    Args:
        scorer: scores with the run's rewards.
        problems: [P].
        texts: of each problem's completions, by the name of their kind: [P] of `trial_completions`.
        advance: called with the number of scored completions.
    """
    groups = [
        Group(problem, (), tuple(authored_completion(n, text, scorer.tokenizer) for n, text in enumerate(row.values())))
        for problem, row in zip(problems, texts, strict=True)
    ]
    together = []
    for outcomes_of in [scorer.begin(group) for group in groups]:
        together.append(outcomes_of())
        advance(len(together[-1]))
    trials = []
    for group, row, outcomes in zip(groups, texts, together, strict=True):
        for name, completion, outcome in zip(row, group.completions, outcomes, strict=True):
            trial = Trial(group.problem.id, _BY_NAME[name], completion.text, len(completion), outcome)
            trials.append(_again(scorer, replace(group, completions=(completion,)), trial) if outcome.valid else trial)
            advance(1)
    return trials


def _again(scorer: TrialScorer, single: Group, trial: Trial) -> Trial:
    started = time.perf_counter()
    alone = scorer.one(single)
    seconds = time.perf_counter() - started
    same = alone.components == trial.outcome.components
    return replace(trial, alone=(alone,) if same else (alone, scorer.one(single)), seconds=seconds)
