"""Steps to record. Imported by processes that are killed while they write: keep it light."""

import math

from grouprl.record.write import RunRecord
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StopReason, TokenTrace

CONFIG = "task: word_problems\n"


def completion(index: int, text: str, stop: StopReason = StopReason.END, version: int = 0) -> Completion:
    # Log-probs that float32 holds exactly come back equal.
    return Completion(index, (7, 11 + index, 2), (-0.5, -0.25, -3.0), (-0.5, -0.125, -4.0), text, stop, version)


PLAIN = Group(
    Problem("train-1", "3 + 4 = ?", {"answer": "7"}), (1, 9, 4), (completion(0, "\\boxed{7}"), completion(1, "ü\n'"))
)
CHAT = Group(
    Problem("train-2", ({"role": "system", "content": "Think."}, {"role": "user", "content": "9 - 1?"}), {"answer": 8}),
    (1, 8),
    (completion(0, "7", StopReason.LENGTH, version=3), completion(1, "", StopReason.STOP_STRING, version=3)),
)
OUTCOMES = (
    (RewardOutcome(1.5, {"correct": 1.0, "boxed": 0.5}), RewardOutcome(0.0, {"correct": 0.0, "boxed": 0.0})),
    (
        RewardOutcome(0.25, {"correct": 0.25, "boxed": None}),
        RewardOutcome(math.nan, {"correct": None}, "correct: timed out"),
    ),
)
# [P][G][tokens]: the same for every token, or each its own.
ADVANTAGES = (((1.0,) * 3, (-1.0, -2.0, -6.0)), ((0.0,) * 3, (0.0,) * 3))
SEEN = TokenTrace((-0.5, -0.25, -2.5), (1.5, 0.0, 0.25), (-0.75, -0.5, -3.0), (-0.25, -0.125, -2.0))
TRACES = ((SEEN, TokenTrace(reference=(-1.0, -2.0, -4.0))), (TokenTrace(), TokenTrace()))


def record_steps(record: RunRecord, steps: range) -> None:
    for step in steps:
        record.step(StepRecord(step, {"reward": step / 4}, (PLAIN, CHAT), OUTCOMES, ADVANTAGES, TRACES))
