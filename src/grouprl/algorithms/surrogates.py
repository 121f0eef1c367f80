"""The ratio of policy to behavior policy, the surrogates of it that are maximized, and the tokens that are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Surrogate = Literal["clip", "cispo", "plain", "sapo", "gmpo", "vespo"]
Ratio = Literal["token", "sequence"]


def policy_ratios(logprobs_NT: Tensor, old_logprobs_NT: Tensor, mask_NT: Tensor, *, ratio: Ratio = "token") -> Tensor:
    """[N, T] ratio of policy to behavior policy: of each token, or of the whole completion at each of its tokens.

    Log-probs are 0 where the mask is false. "sequence" is exp(mean log-ratio), GSPO (arXiv:2507.18071, equation 7).
    """
    log_ratio_NT = logprobs_NT - old_logprobs_NT
    if ratio == "token":
        return log_ratio_NT.exp()
    if ratio == "sequence":
        mean_N1 = log_ratio_NT.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp(min=1)
        return mean_N1.exp().expand_as(log_ratio_NT)
    raise ValueError(f"ratio: got {ratio!r}, expected one of token, sequence")


@dataclass(frozen=True)
class Terms:
    """What a surrogate is a function of: [N, T] tensors, 0 where the mask is false."""

    logprobs_NT: Tensor  # of the policy; the gradient flows through these and the ratio
    old_logprobs_NT: Tensor  # of the behavior policy
    ratio_NT: Tensor  # of policy to behavior policy, see `grouprl.algorithms.policy_ratios`
    advantages_NT: Tensor
    mask_NT: Tensor  # bool, which tokens exist


def clip_gain(terms: Terms, *, low: float, high: float) -> Tensor:
    """[N, T] min(r A, clip(r, 1 - low, 1 + high) A): PPO (arXiv:1707.06347, equation 7), GRPO, DAPO."""
    clipped_NT = terms.ratio_NT.clamp(1 - low, 1 + high)
    return torch.minimum(terms.ratio_NT * terms.advantages_NT, clipped_NT * terms.advantages_NT)


def cispo_gain(terms: Terms, *, low: float, high: float) -> Tensor:
    """[N, T] sg(clip(r, 1 - low, 1 + high)) A logprob: MiniMax-M1 (arXiv:2506.13585, equation 4)."""
    return terms.ratio_NT.clamp(1 - low, 1 + high).detach() * terms.advantages_NT * terms.logprobs_NT


def plain_gain(terms: Terms) -> Tensor:
    """[N, T] r A: the importance-weighted policy gradient."""
    return terms.ratio_NT * terms.advantages_NT


def sapo_gain(terms: Terms, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> Tensor:
    """[N, T] 4 / tau * sigmoid(tau (r - 1)) A: SAPO (arXiv:2511.20347, equations 5 and 6).

    The slope is 1 at a ratio of 1, whatever tau is, and falls to 0 on both sides, the faster the larger tau is.
    tau_pos is that of tokens with a positive advantage, tau_neg that of the others; both are above 0.
    """
    tau_NT = torch.where(terms.advantages_NT > 0, tau_pos, tau_neg).to(terms.ratio_NT.dtype)
    return 4 / tau_NT * torch.sigmoid(tau_NT * (terms.ratio_NT - 1)) * terms.advantages_NT


def gmpo_gain(terms: Terms, *, low: float, high: float) -> Tensor:
    """[N, T] g A with g the geometric mean of a completion's clipped ratios: GMPO (arXiv:2507.20673, equation 4).

    A ratio is at most 1 + high where the advantage is positive, and at least 1 - low elsewhere; the paper's
    (e^-0.4, e^0.4) is (0.67, 1.49). All tokens of a completion have one advantage.
    """
    log_ratio_NT, advantages_NT = terms.logprobs_NT - terms.old_logprobs_NT, terms.advantages_NT
    up_NT, down_NT = log_ratio_NT.clamp(max=math.log1p(high)), log_ratio_NT.clamp(min=math.log1p(-low))
    bounded_NT = torch.where(advantages_NT > 0, up_NT, down_NT)
    mean_N1 = bounded_NT.sum(1, keepdim=True) / terms.mask_NT.sum(1, keepdim=True).clamp(min=1)
    return mean_N1.exp() * advantages_NT


def vespo_gain(
    terms: Terms, *, k_pos: float = 2.0, lambda_pos: float = 3.0, k_neg: float = 3.0, lambda_neg: float = 2.0
) -> Tensor:
    """[N, T] sg(w^k e^(lambda (1 - w))) A logprob, w the product of a completion's ratios: VESPO (arXiv:2602.10693).

    The weight is 1 at w = 1, largest at w = k / lambda, and falls to 0 on both sides. k_pos and lambda_pos are those of
    tokens with an advantage of 0 or more, k_neg and lambda_neg those of the others; both lambdas are above 0.
    """
    log_w_N1 = (terms.logprobs_NT - terms.old_logprobs_NT).detach().sum(1, keepdim=True)
    is_below_NT = (terms.advantages_NT < 0).to(log_w_N1.dtype)
    k_NT = k_pos + (k_neg - k_pos) * is_below_NT
    lambda_NT = lambda_pos + (lambda_neg - lambda_pos) * is_below_NT
    weight_NT = (k_NT * log_w_N1 - lambda_NT * torch.expm1(log_w_N1)).exp()
    return weight_NT * terms.advantages_NT * terms.logprobs_NT


def clipped_tokens(
    ratios_NT: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    surrogate: Surrogate = "clip",
) -> tuple[Tensor, Tensor]:
    """Marks the tokens whose ratio left the clip range in the direction of their advantage.

    With "clip" and "gmpo" the gradient of these tokens is 0; with "cispo" their weight is bounded and the gradient
    stays; with "plain", "sapo" and "vespo" there is no range.

    Args:
        ratios_NT: [N, T].
        advantages: [N] per completion or [N, T] per token.
        clip_low, clip_high: the range is [1 - clip_low, 1 + clip_high].
        surrogate: as in `policy_loss`.

    Returns:
        ([N, T] bool: below the range with a negative advantage; [N, T] bool: above it with a positive advantage).
    """
    if surrogate in ("plain", "sapo", "vespo"):
        none_NT = torch.zeros_like(ratios_NT, dtype=torch.bool)
        return none_NT, none_NT
    advantages_NT = advantages if advantages.ndim == 2 else advantages[:, None]
    below_NT = (ratios_NT < 1 - clip_low) & (advantages_NT < 0)
    above_NT = (ratios_NT > 1 + clip_high) & (advantages_NT > 0)
    return below_NT, above_NT


def too_far(
    logprobs_NT: Tensor, sampler_logprobs_NT: Tensor, advantages_NT: Tensor, mask_NT: Tensor, *, delta: float
) -> Tensor:
    """[N, T] bool: tokens with a negative advantage in completions that the policy left (DeepSeek-V3.2, equation 9).

    Left is a completion whose mean of log(p_sampler / p_policy) over its tokens exceeds delta, in nats
    (arXiv:2512.02556). No gradient flows.
    """
    gap_NT = torch.where(mask_NT, sampler_logprobs_NT - logprobs_NT.detach(), 0.0)
    return (gap_NT.sum(1, keepdim=True) > delta * mask_NT.sum(1, keepdim=True)) & (advantages_NT < 0)


def diverged(
    logprobs_NT: Tensor, sampler_logprobs_NT: Tensor, advantages_NT: Tensor, *, tv: float | None, kl: float | None
) -> Tensor:
    """[N, T] bool: tokens whose probability left the sampler's on the side of their advantage (DPPO, arXiv:2602.04879).

    The complement of the mask M of equation 12 with the binary divergences of equations 13 and 14: of the sampled
    token against all others, with p of the policy and m of the sampler. A token is marked where its divergence exceeds
    a limit, and p > m with a positive advantage or p < m with a negative one. No gradient flows.

    Args:
        tv: limit of |p - m|; None = off.
        kl: limit of m log(m / p) + (1 - m) log((1 - m) / (1 - p)), in nats; None = off.
    """
    log_p, log_m = logprobs_NT.detach().double(), sampler_logprobs_NT.double()
    p_NT, m_NT = log_p.exp().clamp(max=1 - 1e-9), log_m.exp().clamp(max=1 - 1e-9)
    far_NT = torch.zeros_like(advantages_NT, dtype=torch.bool)
    if tv is not None:
        far_NT = (p_NT - m_NT).abs() > tv
    if kl is not None:
        others_NT = (1 - m_NT) * ((1 - m_NT) / (1 - p_NT)).log()
        far_NT = far_NT | (m_NT * (log_m - log_p) + others_NT > kl)
    return far_NT & ((p_NT - m_NT) * advantages_NT > 0)


def left_out(
    logprobs_NT: Tensor,
    sampler_logprobs_NT: Tensor,
    advantages_NT: Tensor,
    mask_NT: Tensor,
    delta: float | None,
    tv: float | None,
    kl: float | None,
) -> Tensor:
    """[N, T] bool: tokens in `too_far` or in `diverged`; None = that limit is off."""
    out_NT = torch.zeros_like(mask_NT)
    if delta is not None:
        out_NT = too_far(logprobs_NT, sampler_logprobs_NT, advantages_NT, mask_NT, delta=delta)
    if tv is not None or kl is not None:
        out_NT = out_NT | diverged(logprobs_NT, sampler_logprobs_NT, advantages_NT, tv=tv, kl=kl)
    return out_NT
