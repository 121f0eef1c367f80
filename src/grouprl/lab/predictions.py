"""The numbers behind the questions of static/predictions.json, each from the function that a training calls."""

from __future__ import annotations

import math

import torch

from grouprl.algorithms import group_advantages, kl_estimate, policy_loss, step_advantages, token_weights

_RATIO = 1.5  # of a token that has become half as likely again
_SHORT, _LONG = 10, 100  # tokens of a right and of a wrong completion


def predicted_numbers() -> dict[str, float]:
    """By name what a reader is asked to predict, and what the answers quote."""

    def advantages(right: int, size: int, **options: str) -> list[float]:
        rewards_G = torch.tensor([1.0] * right + [0.0] * (size - right), dtype=torch.float64)
        return group_advantages(rewards_G, torch.zeros(size, dtype=torch.int64), **options).tolist()  # type: ignore[arg-type]

    def weight(right: int, **options: str) -> float:
        return math.fsum(map(abs, advantages(right, 8, **options)))

    def push(advantage: float) -> float:
        logprob_11 = torch.full((1, 1), math.log(_RATIO), dtype=torch.float64, requires_grad=True)
        loss, _ = policy_loss(logprob_11, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1))
        return 0.0 - float(torch.autograd.grad(loss, logprob_11)[0])

    # Two completions, whose mask has a short and a long row.
    mask_NT = torch.arange(_LONG) < torch.tensor([[_SHORT], [_LONG]])
    by_aggregate = {
        name: token_weights(mask_NT, aggregate=name, constant_length=_LONG)[:, 0].tolist()
        for name in ("sequence_mean", "token_mean", "constant")
    }
    log_ratio_1 = torch.ones(1, dtype=torch.float64)  # the reference finds the token e times as likely
    estimates = {kind: float(kl_estimate(torch.zeros(1), log_ratio_1, kind=kind)) for kind in ("k1", "k2", "k3")}
    # Two completions of two reasoning steps and two tokens: only the first step of the first is right.
    process_NT = step_advantages([[1.0, 0.0], [0.0, 0.0]], [[0, 1], [0, 1]], [0, 0], [2, 2])
    return {
        "equal": advantages(8, 8)[0],
        "outlier_of_8": advantages(1, 8)[0],
        "outlier_of_64": advantages(1, 64)[0],
        "others_of_8": advantages(1, 8)[1],
        "half": advantages(4, 8)[0],
        "half_wrong": advantages(4, 8)[-1],
        **{name: short / long for name, (short, long) in by_aggregate.items()},
        "good_token": push(1.0),
        "bad_token": push(-1.0),
        **estimates,
        "divided": weight(1) / weight(4),
        "undivided": weight(1, scale="none") / weight(4, scale="none"),
        "outcome": advantages(0, 2)[0],
        "right_step": float(process_NT[0, 0]),
        "wrong_end": float(process_NT[0, 1]),
        "wrong_step": float(process_NT[1, 0]),
    }
