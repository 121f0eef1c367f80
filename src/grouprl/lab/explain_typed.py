"""Rewards that somebody types: what algorithms make of them, and the walk-through of such a group.

There are as many completions as rewards, equally probable to begin with: the policy is one softmax over them, each a
single token, so that the update is one step of its logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from grouprl.algorithms.advantages import CompletionAdvantage
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.lab.explain_stages import (
    Material,
    algorithm_part,
    gradient_stage,
    kl_stage,
    loss_stage,
    ratio_stage,
)
from grouprl.report.worked import compared, compared_rewards, comparison_sentence, numbers

# Those that compare whole completions by their rewards, and need no network for it.
COMPARING = {name: one for name, one in NAMED.items() if isinstance(one.advantage, CompletionAdvantage)}


def explained_advantages(rewards: Sequence[float], algorithms: Sequence[Algorithm]) -> dict[str, Any]:
    """What algorithms that compare whole completions make of one group's rewards; NaN = invalid, null in the answer.

    Returns:
        `rewards`, `valid` (how many), and `algorithms`: of each by its name `report.worked.compared`.
    """
    return {
        "rewards": numbers(rewards),
        "valid": sum(not math.isnan(reward) for reward in rewards),
        "algorithms": {algorithm.name: compared(rewards, algorithm) for algorithm in algorithms},
    }


def typed_walk_through(rewards: Sequence[float], algorithm: Algorithm, learning_rate: float) -> dict[str, Any]:
    """Every stage of such a group, in the form of `explain_group.walk_through`.

    Args:
        rewards: of the completions; NaN = invalid.
        algorithm: one that compares whole completions.
        learning_rate: of the step of gradient descent.

    Returns:
        The same keys; the prompt's text is null, and `update` is always known.
    """
    size = len(rewards)
    logits_G = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    logprobs_G1 = torch.log_softmax(logits_G, 0)[:, None]
    start_G1, mask_G1 = logprobs_G1.detach(), torch.ones(size, 1, dtype=torch.bool)
    rewards_G = torch.tensor(rewards, dtype=torch.float64)
    found = compared_rewards(rewards_G, torch.zeros(size, dtype=torch.int64), algorithm)
    advantages_G = found.advantages(rewards_G)
    material = Material(
        algorithm=algorithm,
        kl_coef=algorithm.kl_coef,
        mask_GT=mask_G1,
        trained_GT=mask_G1,
        max_tokens=1,
        weights_GT=algorithm.objective.weights(mask_G1, max_tokens=1).double(),
        logprobs_GT=start_G1,
        old_GT=start_G1,
        reference_GT=start_G1 if algorithm.kl is not None else None,
        advantages_GT=advantages_G[:, None].double(),
    )
    loss, _ = material.loss(logprobs_G1)
    (slope_G,) = torch.autograd.grad(loss, logits_G)
    updated_G = torch.log_softmax(logits_G.detach() - learning_rate * slope_G, 0)
    anchor = "the reference is the policy itself to begin with" if algorithm.kl is not None else "kl_coef is 0"
    once = "one update per batch: the policy that learns is the one that sampled, and every ratio is 1"
    return {
        "source": {"rewards": numbers(rewards), "learning_rate": learning_rate},
        "algorithm": algorithm_part(material),
        "kept": True,
        "notes": [],
        "stages": {
            "prompt": {"problem_id": None, "text": None, "messages": None, "columns": {}, "tokens": None},
            "completions": [
                {"index": index, "text": f"completion {index}", "length": 1, "stop_reason": "end"}
                for index in range(size)
            ],
            "rewards": _rewards(rewards),
            "statistics": {
                "kind": "rewards",
                "sentence": comparison_sentence(algorithm),
                "compared": compared(rewards, algorithm),
            },
            "advantages": {"completions": advantages_G.tolist(), "by_token": False, "tokens": None},
            "ratio": ratio_stage(material, [once] * size),
            "kl": kl_stage(material, anchor),
            "loss": {**loss_stage(material), "step": None, "batch": {"groups": 1, "completions": size}},
            "gradient": gradient_stage(material),
            "update": {
                "completions": _moved(start_G1[:, 0].tolist(), updated_G.tolist()),
                "learning_rate": learning_rate,
                "grad_norm": float(slope_G.norm()),
                "logits_gradient": (slope_G + 0.0).tolist(),
                "watched": [],
                "reason": None,
            },
        },
    }


def _rewards(rewards: Sequence[float]) -> dict[str, Any]:
    completions: list[dict[str, Any]] = [
        {
            "components": {"reward": reward},
            "reward": reward,
            "invalid_reason": "nan was given" if reward is None else None,
            "correct": None,
            "penalty": 0.0,
            "steps": [],
        }
        for reward in numbers(rewards)
    ]
    return {"names": ["reward"], "by_step": [], "weights": {"reward": 1.0}, "completions": completions}


def _moved(before: Sequence[float], after: Sequence[float]) -> list[dict[str, Any]]:
    pairs = torch.tensor([before, after], dtype=torch.float64)
    chances, factors = pairs.exp().tolist(), (pairs[1] - pairs[0]).exp().tolist()
    return [
        {
            "sampled": before[row],
            "before": before[row],
            "after": after[row],
            "probability_before": chances[0][row],
            "probability_after": chances[1][row],
            "factor": factors[row],
        }
        for row in range(len(before))
    ]
