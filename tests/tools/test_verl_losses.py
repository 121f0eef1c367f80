"""Each loss_mode of verl 0.9.1: the imported algorithm has the gradient of verl's formula, written per token here."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grouprl import UserError
from grouprl.algorithms import token_weights
from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.spec import Algorithm
from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
from grouprl.tools.imported.read import Foreign
from grouprl.tools.imported.recipe import import_foreign, write_recipe

ACTOR = "actor_rollout_ref.actor."
MODE = f"{ACTOR}policy_loss.loss_mode"
GRPO = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 4,
    "custom_reward_function.path": "score.py",
    "custom_reward_function.name": "compute_score",
}
LENGTHS = (3, 5, 2, 4)
ADVANTAGES = (1.3, -0.7, 0.4, -1.1)
LOW, HIGH, C = 0.15, 0.25, 1.6
Token = Callable[[float, float, float], float]
"""From log-prob, old log-prob and advantage to the factor of the log-prob's gradient, to be minimized."""


def imported(tmp_path: Path, **actor: Any) -> Algorithm:
    given = GRPO | {ACTOR + key.replace("__", "."): value for key, value in actor.items()}
    target = tmp_path / "made.yaml"
    write_recipe(import_foreign(Foreign("verl", given)), "theirs", target, force=True)
    return load_config(RunConfig, [target], []).algorithm


def completions() -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, old log-probs and mask [N, T], with ratios on both sides of every edge."""
    draw = torch.Generator().manual_seed(3)
    old = -2 * torch.rand(len(LENGTHS), max(LENGTHS), generator=draw, dtype=torch.float64) - 0.05
    new = (old + 0.9 * torch.randn(old.shape, generator=draw, dtype=torch.float64)).clamp(max=-0.01)
    return new, old, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def equal(algorithm: Algorithm, there: list[list[float]]) -> None:
    """The gradient of the imported algorithm is the other one."""
    new, old, mask = completions()
    policy = new.clone().requires_grad_()
    weights = token_weights(mask.double(), aggregate=algorithm.objective.aggregate)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)[:, None].expand_as(old)
    algorithm.objective.loss(TokenGrid(policy, old, advantages, weights, mask))[0].backward()
    expected = torch.tensor(there, dtype=torch.float64)
    assert expected.count_nonzero() > 4
    torch.testing.assert_close(policy.grad, expected, rtol=1e-6, atol=1e-9)


def same(algorithm: Algorithm, factor: Token, *, token_mean: bool = True) -> None:
    new, old, _ = completions()
    rows = []
    for i, (length, advantage) in enumerate(zip(LENGTHS, ADVANTAGES, strict=True)):
        weight = 1 / sum(LENGTHS) if token_mean else 1 / (len(LENGTHS) * length)
        own = [weight * factor(float(new[i, t]), float(old[i, t]), advantage) for t in range(length)]
        rows.append(own + [0.0] * (max(LENGTHS) - length))
    equal(algorithm, rows)


def test_cispo_bounds_the_ratio_on_both_sides(tmp_path: Path):
    algorithm = imported(tmp_path, policy_loss__loss_mode="cispo", clip_ratio_low=LOW, clip_ratio_high=HIGH)
    same(algorithm, lambda new, old, a: -a * min(max(math.exp(new - old), 1 - LOW), 1 + HIGH))


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_dppo_cuts_the_ratio_and_masks_by_divergence(tmp_path: Path, kind: str):
    def factor(new: float, old: float, a: float) -> float:
        p, q = math.exp(new), math.exp(old)
        moved = abs(p - q) if kind == "tv" else q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        away = p > q if a > 0 else p < q
        return 0.0 if away and moved > LOW else -a * min(math.exp(new - old), C)

    sides = {"clip_ratio_low": LOW, "clip_ratio_high": LOW, "clip_ratio_c": C}
    same(imported(tmp_path, policy_loss__loss_mode=f"dppo_{kind}", **sides), factor)
    with pytest.raises(UserError, match=r"clip_ratio_low equal to clip_ratio_high, one divergence, got 0\.15 and 0\.3"):
        imported(tmp_path, policy_loss__loss_mode=f"dppo_{kind}", clip_ratio_low=LOW, clip_ratio_high=0.3)


def test_sapo_has_its_temperatures_and_its_own_mean(tmp_path: Path):
    def factor(new: float, old: float, a: float) -> float:
        ratio, tau = math.exp(new - old), 1.5 if a > 0 else 2.5
        gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
        return -a * 4 * gate * (1 - gate) * ratio

    made = imported(tmp_path, policy_loss__loss_mode="sapo", tau_pos=1.5, tau_neg=2.5, loss_agg_mode="token-mean")
    same(made, factor, token_mean=False)


def of_whole(edge: Callable[[float, float], float], *, inside: Callable[[float, float], bool]) -> list[list[float]]:
    """The gradient of -A exp(mean of `edge(log-ratio, A)`), mean over completions."""
    new, old, _ = completions()
    rows = []
    for i, (length, a) in enumerate(zip(LENGTHS, ADVANTAGES, strict=True)):
        logs = [float(new[i, t] - old[i, t]) for t in range(length)]
        ratio = math.exp(sum(edge(x, a) for x in logs) / length)
        own = [-a * ratio / length / len(LENGTHS) if inside(x, a) else 0.0 for x in logs]
        rows.append(own + [0.0] * (max(LENGTHS) - length))
    return rows


def test_geo_mean_clips_the_logs_of_ratios(tmp_path: Path):
    def edge(x: float, a: float) -> float:
        return min(x, HIGH) if a > 0 else max(x, -LOW)

    made = imported(tmp_path, policy_loss__loss_mode="geo_mean", clip_ratio_low=LOW, clip_ratio_high=HIGH)
    equal(made, of_whole(edge, inside=lambda x, a: edge(x, a) == x))


def test_gspo_has_the_ratio_of_the_completion_and_no_dual_clip(tmp_path: Path):
    """verl spreads it over tokens: s = sg[s_i] p / sg[p], whose gradient is s_i at each token."""
    wide = {"clip_ratio_low": 0.9, "clip_ratio_high": 9.0, "loss_agg_mode": "seq-mean-token-mean"}
    made = imported(tmp_path, policy_loss__loss_mode="gspo", **wide)
    equal(made, of_whole(lambda x, _: x, inside=lambda *_: True))
    assert made.objective.dual_clip is None
    assert made.objective.range == (0.9, 9.0)


@pytest.mark.parametrize("mode", ["gspo", "geo_mean"])
def test_a_ratio_of_the_completion_needs_one_advantage(mode: str):
    with pytest.raises(UserError, match=f"loss_mode={mode}: expected one advantage for each completion"):
        import_foreign(Foreign("verl", GRPO | {MODE: mode, "algorithm.adv_estimator": "gae"}))


@pytest.mark.parametrize("mode", ["gpg", "clip_cov", "kl_cov", "dro", "no_such"])
def test_other_modes_stop(mode: str):
    with pytest.raises(
        UserError, match=f"loss_mode={mode}: expected one of vanilla, gspo, sapo, cispo, geo_mean, dppo_tv"
    ):
        import_foreign(Foreign("verl", GRPO | {MODE: mode}))
