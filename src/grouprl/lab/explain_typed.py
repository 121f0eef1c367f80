"""What the explainers compute without a run: what algorithms make of typed rewards, and curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from grouprl.algorithms import has_signal, kl_estimate, policy_loss
from grouprl.algorithms.advantages import CompletionAdvantage
from grouprl.algorithms.kl import KlKind
from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.stages import group_stages
from grouprl.algorithms.surrogates import Surrogate
from grouprl.lab.explain_group import walk_through
from grouprl.lab.report.worked import compared, compared_rewards, numbers
from grouprl.types import StopReason

# Those that compare whole completions by their rewards, and need no network for it.
COMPARING = {name: method for name, method in NAMED.items() if isinstance(method.advantage, CompletionAdvantage)}

_LARGEST_RATIO, _RATIO_STEPS = 2.5, 250
_NARROW = 0.05  # bounds closer to 1 could not be seen on an axis from 0 to the largest ratio
_LARGEST_LOG_RATIO, _LOG_RATIO_STEPS = 3.0, 60  # on either side of 0
_RATES = [percent / 100 for percent in range(101)]
_KINDS: tuple[KlKind, ...] = ("k1", "k2", "k3")
# Three tokens; the worked example of docs/algorithms.md.
_POLICY_LOGITS, _REFERENCE_LOGITS = (0.5, 0.0, -0.5), (0.0, 0.2, 0.4)


# Typed rewards


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


def typed_walk(rewards: Sequence[float], algorithm: Algorithm, learning_rate: float) -> dict[str, Any]:
    """Every stage of such a group, in the form of `explain_group.recorded_walk`.

    There are as many completions as rewards, equally probable to begin with: the policy is one softmax over them, each
    a single token, so that the update is one step of its logits.

    Args:
        rewards: of the completions; NaN = invalid.
        algorithm: one that compares whole completions.
        learning_rate: of the step of gradient descent.

    Returns:
        The same keys; the prompt's text is null, and `update` is always known.
    """
    size, rewards_G = len(rewards), torch.tensor(rewards, dtype=torch.float64)
    one_group_G = torch.zeros(size, dtype=torch.int64)
    result = compared_rewards(rewards_G, one_group_G, algorithm)
    advantages_G = result.advantages(rewards_G).double()
    before_G = torch.log_softmax(torch.zeros(size, dtype=torch.float64), 0)
    ones_G1, before_G1 = torch.ones(size, 1, dtype=torch.float64), before_G[:, None]
    weights_G1 = algorithm.objective.weights_of_groups(ones_G1 > 0, one_group_G, max_tokens=1)
    reference_G1 = before_G1 if algorithm.kl is not None else None
    tokens = TokenGrid(before_G1, before_G1, advantages_G[:, None], weights_G1, ones_G1 > 0, reference_NT=reference_G1)
    kl_coef = algorithm.kl_coef
    stages = group_stages(algorithm, tokens, before_G1, kl_coef=kl_coef)
    # The gradient by the logits of a softmax, from that by the log-probs of its outcomes.
    slope_G = torch.tensor([entry["sum"] for entry in stages["gradient"]["completions"]], dtype=torch.float64)
    slope_G = slope_G - before_G.exp() * slope_G.sum()
    updated_G = torch.log_softmax(-learning_rate * slope_G, 0)
    stages = group_stages(algorithm, tokens, updated_G[:, None], kl_coef=kl_coef)
    stages["kl"]["reason"] = "the policy starts equal to the reference" if algorithm.kl else "kl_coef is 0"
    stages["loss"]["batch"] = {"groups": 1, "completions": size}
    stages["update"] |= {"learning_rate": learning_rate, "grad_norm": float(slope_G.norm())}
    completions = [
        {
            "text": f"completion {index}",
            "length": 1,
            "stop_reason": StopReason.END.value,
            "components": {"reward": reward},
            "weights": {"reward": 1.0},
            "reward": reward,
            "invalid_reason": "the reward is nan" if reward is None else None,
            "advantage": advantage,
        }
        for index, (reward, advantage) in enumerate(zip(numbers(rewards), advantages_G.tolist(), strict=True))
    ]
    walked = walk_through(
        algorithm,
        completions,
        stages,
        against=None,
        token_advantages=[[advantage] for advantage in advantages_G.tolist()],
        by_step={},
        metrics={},
    )
    return {"source": {"rewards": numbers(rewards), "learning_rate": learning_rate}, "notes": [], **walked}


# The objective


def objective_curve(
    advantage: float,
    *,
    surrogate: Surrogate,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
) -> dict[str, Any]:
    """What a token contributes to the objective, and its gradient, by the ratio of policy to behavior policy.

    Args:
        advantage: of the token.
        surrogate, clip_low, clip_high, dual_clip: of `policy_loss`, as are the following.

    Returns:
        `ratio`: 0 to 2.5, further where a bound lies further, a short way around 1 where all bounds are close to it,
        the bounds exactly among them; `objective`: the term that is maximized (null where it is infinite); `gradient`:
        of it with respect to the token's log-prob; `bounds`: of the ratio, none where nothing is clipped; `dead`:
        intervals [from, to] of ratios, in which the gradient is exactly 0, without their ends at a bound.
    """
    bounds = set() if surrogate in ("plain", "sapo", "vespo") else {1 - clip_low, 1 + clip_high}
    reach = max((abs(bound - 1) for bound in bounds), default=_LARGEST_RATIO)
    if 0 < reach < _NARROW and dual_clip is None:
        first, last = 1 - 2.5 * reach, 1 + 2.5 * reach
    else:
        first, last = 0.0, max(_LARGEST_RATIO, 1.2 * max(bounds, default=1.0), 1.2 * (dual_clip or 1.0))
    if dual_clip is not None and advantage < 0:
        bounds.add(dual_clip)
    kept = sorted(bound for bound in {1.0, *bounds} if first <= bound <= last)
    even = [first + index * (last - first) / _RATIO_STEPS for index in range(_RATIO_STEPS + 1)]
    near = (last - first) / _RATIO_STEPS * 1e-6
    ratios = sorted([*kept, *(ratio for ratio in even if all(abs(ratio - bound) > near for bound in kept))])
    logprobs_R1 = torch.tensor(ratios, dtype=torch.float64).log()[:, None].requires_grad_()
    weights_R1 = torch.ones_like(logprobs_R1).requires_grad_()
    loss, _ = policy_loss(
        logprobs_R1,
        torch.zeros_like(logprobs_R1),
        torch.full((len(ratios),), advantage, dtype=torch.float64),
        weights_R1,
        surrogate=surrogate,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        tau_pos=tau_pos,
        tau_neg=tau_neg,
        k_pos=k_pos,
        lambda_pos=lambda_pos,
        k_neg=k_neg,
        lambda_neg=lambda_neg,
    )
    # The loss is a weighted sum: its derivative by a weight is the term that the weight belongs to.
    slopes_R1, terms_R1 = torch.autograd.grad(loss, (logprobs_R1, weights_R1))
    gradient = [0.0 - slope for slope in slopes_R1[:, 0].tolist()]
    stretches = []
    for zero, run in itertools.groupby(range(len(ratios)), key=lambda index: gradient[index] == 0):
        places = list(run)
        first, last = places[0], places[-1]
        if first > 0 and ratios[first - 1] in kept:
            first -= 1
        if last + 1 < len(ratios) and ratios[last + 1] in kept:
            last += 1
        # At a ratio of 0 a gradient that is the ratio times the advantage is 0 as well: a point is no interval.
        if zero and len(places) > 1:
            stretches.append([ratios[first], ratios[last]])
    return {
        "ratio": ratios,
        "objective": [0.0 - term for term in terms_R1[:, 0].tolist()],
        "gradient": gradient,
        "bounds": sorted(bounds),
        "dead": stretches,
    }


# The KL


def kl_curves() -> dict[str, Any]:
    """The three estimators of a token by log(p_ref / p), and what they come to over a whole distribution.

    Returns:
        `log_ratio`: -3 to 3; `kinds`: by name `value` and `gradient`, with respect to the log-prob of the policy;
        `pair`: a policy and a reference over three tokens with the exact `kl` (policy || reference) and `reverse_kl`,
        and by name the `expectation` and the `gradient` by the policy's logits of what it comes to as a loss, tokens
        being drawn from the policy; `exact_gradient` and `reverse_gradient` of the two KLs for comparison.
    """
    span = range(-_LOG_RATIO_STEPS, _LOG_RATIO_STEPS + 1)
    log_ratios = [index * _LARGEST_LOG_RATIO / _LOG_RATIO_STEPS for index in span]
    curves = {}
    for kind in _KINDS:
        logprobs_R = torch.zeros(len(log_ratios), dtype=torch.float64, requires_grad=True)
        values_R = kl_estimate(logprobs_R, torch.tensor(log_ratios, dtype=torch.float64), kind=kind)
        (slopes_R,) = torch.autograd.grad(values_R.sum(), logprobs_R)
        curves[kind] = {"value": values_R.tolist(), "gradient": slopes_R.tolist()}
    logits_V = torch.tensor(_POLICY_LOGITS, dtype=torch.float64, requires_grad=True)
    policy = Categorical(logits=logits_V)
    reference = Categorical(logits=torch.tensor(_REFERENCE_LOGITS, dtype=torch.float64))
    forward, reverse = kl_divergence(policy, reference), kl_divergence(reference, policy)
    logprobs_V, drawn_V = policy.logits, policy.probs.detach()

    def slope(value: Tensor) -> list[float]:
        return torch.autograd.grad(value, logits_V, retain_graph=True)[0].tolist()

    means = {kind: (drawn_V * kl_estimate(logprobs_V, reference.logits, kind=kind)).sum() for kind in _KINDS}
    pair = {
        "policy": drawn_V.tolist(),
        "reference": reference.probs.tolist(),
        "kl": float(forward.detach()),
        "reverse_kl": float(reverse.detach()),
        "exact_gradient": slope(forward),
        "reverse_gradient": slope(reverse),
        "kinds": {kind: {"expectation": float(mean.detach()), "gradient": slope(mean)} for kind, mean in means.items()},
    }
    return {"log_ratio": log_ratios, "kinds": curves, "pair": pair}


# The pass rate


def pass_rate_curves(group_size: int, algorithms: Sequence[Algorithm]) -> dict[str, Any]:
    """How much a group weighs by the chance that a completion is right; rewards are 1 and 0.

    Args:
        group_size: completions of a group.
        algorithms: that compare whole completions.

    Returns:
        `pass_rate`: 0 to 1; `signal`: chance that the rewards of a group differ; `algorithms`: by name the expected
        `weight`, the sum of |advantage| over the group, and `by_correct`, that sum for 0 to G right completions;
        `quotient`: GRPO's weight over Dr.GRPO's, which does not divide by the deviation (None where both are 0).
    """
    right = range(group_size + 1)
    groups = [torch.tensor([1.0] * count + [0.0] * (group_size - count), dtype=torch.float64) for count in right]
    one_group = torch.zeros(group_size, dtype=torch.int64)
    chances = [
        [(math.comb(group_size, count) * rate**count * (1 - rate) ** (group_size - count)) for count in right]
        for rate in _RATES
    ]
    signals = [float(has_signal(rewards_G, one_group)[0]) for rewards_G in groups]
    curves = {}
    for kind in {kind.name: kind for kind in (*algorithms, COMPARING["grpo"], COMPARING["dr_grpo"])}.values():
        advantages = [compared_rewards(rewards_G, one_group, kind).advantages(rewards_G) for rewards_G in groups]
        sums = [float(advantages_G.abs().sum()) for advantages_G in advantages]
        curves[kind.name] = {"weight": [_expected(row, sums) for row in chances], "by_correct": sums}
    pairs = zip(curves["grpo"]["weight"], curves["dr_grpo"]["weight"], strict=True)
    return {
        "group_size": group_size,
        "pass_rate": _RATES,
        "signal": [_expected(row, signals) for row in chances],
        "algorithms": {kind.name: curves[kind.name] for kind in algorithms},
        "quotient": [divided / bare if bare else None for divided, bare in pairs],
    }


def _expected(chances: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(chance * value for chance, value in zip(chances, values, strict=True))
