"""What is maximized instead of the clipped ratio: a soft gate, a geometric mean; and what is too far off-policy."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def soft_gate(ratio_NT: Tensor, advantages_NT: Tensor, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> Tensor:
    """[N, T] 4 / tau * sigmoid(tau * (ratio - 1)), in the place of the ratio (SAPO, arXiv:2511.20347, equations 5, 6).

    Its slope is 1 at a ratio of 1, whatever tau is, and falls to 0 on both sides, the faster the larger tau is.

    Args:
        ratio_NT: [N, T] of policy to behavior policy.
        advantages_NT: [N, T].
        tau_pos, tau_neg: tau of tokens with a positive advantage, and of the others; above 0.
    """
    tau_NT = torch.where(advantages_NT > 0, tau_pos, tau_neg).to(ratio_NT.dtype)
    return 4 / tau_NT * torch.sigmoid(tau_NT * (ratio_NT - 1))


def geometric_ratio(
    log_ratio_NT: Tensor, advantages_NT: Tensor, mask_NT: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """[N, 1] geometric mean of a completion's ratios, each clipped first (GMPO, arXiv:2507.20673, equation 4).

    A ratio is at most 1 + clip_high where the advantage is positive, and at least 1 - clip_low elsewhere. The paper's
    (e^-0.4, e^0.4) is (0.67, 1.49).

    Args:
        log_ratio_NT: [N, T] log of the ratio of policy to behavior policy, 0 where the mask is false.
        advantages_NT: [N, T], the same for all tokens of a completion.
        mask_NT: [N, T] bool, which tokens exist.
        clip_low, clip_high: as above.
    """
    up_NT, down_NT = log_ratio_NT.clamp(max=math.log1p(clip_high)), log_ratio_NT.clamp(min=math.log1p(-clip_low))
    bounded_NT = torch.where(advantages_NT > 0, up_NT, down_NT)
    return (bounded_NT.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp(min=1)).exp()


def too_far(
    logprobs_NT: Tensor, sampler_logprobs_NT: Tensor, advantages_NT: Tensor, mask_NT: Tensor, *, delta: float
) -> Tensor:
    """[N, T] bool: tokens with a negative advantage in completions that the policy left (DeepSeek-V3.2, equation 9).

    Left is a completion whose mean of log(p_sampler / p_policy) over its tokens exceeds delta (arXiv:2512.02556).

    Args:
        logprobs_NT: [N, T] of the policy; no gradient flows.
        sampler_logprobs_NT: [N, T] that the completions were drawn with.
        advantages_NT: [N, T].
        mask_NT: [N, T] bool, which tokens exist.
        delta: in nats per token.
    """
    gap_NT = torch.where(mask_NT, sampler_logprobs_NT - logprobs_NT.detach(), 0.0)
    return (gap_NT.sum(1, keepdim=True) > delta * mask_NT.sum(1, keepdim=True)) & (advantages_NT < 0)


def diverged(
    logprobs_NT: Tensor, sampler_logprobs_NT: Tensor, advantages_NT: Tensor, *, tv: float | None, kl: float | None
) -> Tensor:
    """[N, T] bool: tokens whose probability left the sampler's on the side of their advantage (DPPO, arXiv:2602.04879).

    The complement of the mask M of equation 12 with the binary divergences of equations 13 and 14: of the sampled
    token against all others, with p of the policy and m of the sampler. A token is marked where its divergence exceeds
    a limit, and p > m with a positive advantage or p < m with a negative one.

    Args:
        logprobs_NT: [N, T] of the policy; no gradient flows.
        sampler_logprobs_NT: [N, T] that the tokens were drawn with.
        advantages_NT: [N, T].
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
