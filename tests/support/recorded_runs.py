"""A run directory of the shape that a good run has, made by the recorder from a seed."""

from __future__ import annotations

from pathlib import Path

from grouprl.record.read import Example
from grouprl.record.write import RunRecord
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StopReason

ATTACK = '</script><script>alert("x")</script><img src=http://example.com/a.png onerror=alert(1)>\u202e\\boxed{1}'
BEFORE = {
    "greedy_accuracy": 0.312, "greedy_interval": [0.273, 0.354], "pass_at_1": 0.278, "pass_at_1_interval": [0.256, 0.3],
    "pass_at_8": 0.902, "pass_at_8_interval": [0.873, 0.925], "worked_share": 0.302, "mean_length": 21.4,
    "problems": 500,
}  # fmt: skip
AFTER = {
    "greedy_accuracy": 0.974, "greedy_interval": [0.956, 0.985], "pass_at_1": 0.951,
    "pass_at_1_interval": [0.938, 0.964], "pass_at_8": 0.996, "pass_at_8_interval": [0.986, 1.0016],
    "worked_share": 0.991, "mean_length": 44.9, "problems": 500,
}  # fmt: skip
MACHINE = {
    "cpu": "Xeon", "cores": 2, "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11", "device": "cpu",
}  # fmt: skip
SUMMARY = {
    "before": BEFORE, "after": AFTER, "train_seconds": 98.2, "total_seconds": 131.7, "steps": 60, "seed": 0,
    "peak_rss_mib": 912.4, "completion_tokens": 284_112, "model": "abacus", "task": "word_problems",
    "algorithm": "grpo", "machine": MACHINE,
}  # fmt: skip


def metrics_at(share: float) -> dict[str, float]:
    """Numbers of the shape that a good run has, after this share of its steps: guessing gives way to working out."""
    parts = {"rollout": 0.8 + 0.3 * share, "reward": 0.04, "reference": 0.12, "learn": 0.5, "record": 0.015}
    return {
        "reward": 0.74 + 0.7 * share, "reward_std": 0.45 - 0.4 * share, "rewards/correct/mean": 0.25 + 0.7 * share,
        "rewards/boxed/mean": 0.98, "accuracy": 0.25 + 0.7 * share, "worked_share": 0.3 + 0.69 * share,
        "frac_reward_zero_std": 0.2 + 0.6 * share, "frac_solved": 0.75 * share, "frac_hopeless": 0.2 - 0.15 * share,
        "curriculum/seen": 960 * share, "curriculum/solved": 480 * share, "curriculum/hopeless": 240 * share,
        "completions/mean_length": 21 + 24 * share, "loss": 0.01, "kl": 0.4 * share, "entropy": 0.6 - 0.45 * share,
        "grad_norm": 0.7, "learning_rate": 1e-4, "clip_high_fraction": 0.01, "value_loss": 0.3,
        "tokens_per_second": 4700.0, "completion_tokens": 4735, "sampler_learner_gap": 2e-6, "rss_mib": 900.0,
        **{f"time/{part}": seconds for part, seconds in parts.items()}, "time/total": sum(parts.values()) + 0.1,
    }  # fmt: skip


def tiny_group(step: int) -> Group:
    completion = Completion(0, (5, 2), (-0.1, -0.2), (-0.1, -0.2), "\\boxed{7}", StopReason.END, step - 1)
    return Group(Problem(f"train-{step}", "3 + 4 = ?", {"answer": "7"}), (1, 9), (completion,))


def examples(solved: bool) -> list[Example]:
    prompt = "John has {} apples, gives 3 to Mary, and then gives 5 to Kevin. How many are left?"
    worked = "3 to Mary leaves {} - 3 = {}.\n5 to Kevin leaves {} - 5 = {}.\n\\boxed{{{}}}"
    guess = "I think there are 7 left. \\boxed{7}"
    return [
        Example(
            problem_id=f"test-{apples}",
            prompt=prompt.format(apples),
            answer=str(apples - 8),
            completion=worked.format(apples, apples - 3, apples - 3, apples - 8, apples - 8) if solved else guess,
            correct=solved or apples == 15,
        )
        for apples in (12, 15, 31, 40)
    ]


def record_run(directory: Path, steps: int = 60, finished: bool = True) -> Path:
    outcome = RewardOutcome(1.5, {"correct": 1.0, "boxed": 0.5})
    attacked = Example("test-x", "2 & 2 < 5?", "yes", ATTACK, correct=False)
    with RunRecord.create(directory, "task: word_problems\nalgorithm:\n  name: grpo\n  kl_coef: 0.04\n") as record:
        record.examples("before", [*examples(solved=False), attacked])
        for step in range(1, steps + 1):
            record.step(StepRecord(step, metrics_at(step / steps), [tiny_group(step)], [[outcome]], [[[0.0, 0.0]]]))
            if step % 10 == 0:
                share = 0.3 + 0.65 * step / steps
                record.evaluation(step, {"greedy_accuracy": share, "greedy_interval": [share - 0.03, share + 0.02]})
        if finished:
            record.examples("after", [*examples(solved=True), attacked])
            record.summary(SUMMARY)
    return directory
