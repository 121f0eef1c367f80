"""Preference pairs for tests: as rows of a file, and as the groups of a recorded run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from grouprl.config.run import RunConfig, dump_config
from grouprl.record.write import RunRecord
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StopReason

ROWS = [
    {"prompt": f"What is {n}?", "chosen": f"It is {n}, of course.", "rejected": f"I guess {n}" + " or not" * (n % 3)}
    for n in range(12)
]


def completion(index: int, token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Completion:
    """As a policy's, with log-probs of its own."""
    ended = token_ids[-1] == tokenizer.eos_token_id
    return Completion(
        index=index,
        token_ids=tuple(token_ids),
        logprobs=(-1.0,) * len(token_ids),
        plain_logprobs=(-1.5,) * len(token_ids),
        text=tokenizer.decode(token_ids, skip_special_tokens=True),
        stop_reason=StopReason.END if ended else StopReason.LENGTH,
        weights_version=3,
    )


def outcome(reward: float) -> RewardOutcome:
    """A reward of 1 is the verifier's; a NaN is a failed one, which says nothing of the verifier."""
    if math.isnan(reward):
        return RewardOutcome(reward, {"r": None}, "broken")
    return RewardOutcome(reward, {"r": reward}, "", (), reward == 1)


def recorded_run(
    directory: Path,
    model: Path,
    rewards: Sequence[Sequence[Sequence[float]]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    again: bool = False,
) -> Path:
    """A run with the rewards [step][group][completion]; completion i of problem p is token 40 + p, i + 1 times.

    `again`: every step has the same problems.
    """
    config = RunConfig(name=directory.name, runs_dir=str(directory.parent), model={"path": str(model)})
    problem = 0
    with RunRecord.create(directory, dump_config(config)) as record:
        for step, groups in enumerate(rewards, 1):
            made, problem = [], 0 if again else problem
            for group in groups:
                own = [
                    completion(i, [40 + problem] * (i + 1) + [tokenizer.eos_token_id] * (i % 2), tokenizer)
                    for i in range(len(group))
                ]
                made.append(Group(Problem(f"p{problem}", f"Say {problem}."), (5, 6, 7 + problem), tuple(own)))
                problem += 1
            flat = [[[0.0] * len(c) for c in group.completions] for group in made]
            record.step(StepRecord(step, {"loss": 0.0}, made, [[outcome(r) for r in group] for group in groups], flat))
    return directory
