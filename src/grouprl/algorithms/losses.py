"""The clipped policy objective and its relatives: token weights, ratio, clip, KL, and their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from grouprl.algorithms.advantages import check_tensor
from grouprl.algorithms.kl import Kl, KlKind, kl_estimate
from grouprl.algorithms.option import Part, option
from grouprl.algorithms.surrogates import (
    Ratio,
    Surrogate,
    Terms,
    cispo_gain,
    clip_gain,
    clipped_tokens,
    gmpo_gain,
    left_out,
    plain_gain,
    policy_ratios,
    sapo_gain,
    vespo_gain,
)
from grouprl.types import UserError

Aggregate = Literal["sequence_mean", "token_mean", "prompt_mean", "constant"]
Gain = Callable[[Terms], Tensor]
"""What each token adds to the objective."""


def token_weights(
    mask_NT: Tensor,
    *,
    aggregate: Aggregate = "sequence_mean",
    constant_length: int | None = None,
    group_ids_N: Tensor | None = None,
) -> Tensor:
    """Computes each token's weight in the loss from the whole batch, so that no split of it changes the gradient.

    Args:
        mask_NT: [N, T] true (or 1) for tokens that enter the loss.
        aggregate: "sequence_mean": 1 / (N * len_i), GRPO (arXiv:2402.03300, equation 3); "token_mean":
            1 / sum(len), DAPO (arXiv:2503.14476, equation 8); "prompt_mean": 1 / (P * sum(len) of the group), ScaleRL
            (arXiv:2510.13786, section 4); "constant": 1 / (N * constant_length), Dr.GRPO (arXiv:2503.20783, section
            3.2).
        constant_length: the fixed length of "constant", usually max_tokens.
        group_ids_N: [N] of "prompt_mean": rows with the same integer form a group.

    Returns:
        [N, T] float32, 0 outside the mask.

    Raises:
        ValueError: "constant" without a positive length, "prompt_mean" without groups, or an unknown aggregate.
    """
    mask_NT = mask_NT.float()
    sequences = mask_NT.shape[0]
    if aggregate == "sequence_mean":
        return mask_NT / (sequences * mask_NT.sum(1, keepdim=True).clamp(min=1))
    if aggregate == "token_mean":
        return mask_NT / mask_NT.sum().clamp(min=1)
    if aggregate == "constant":
        if not constant_length or constant_length < 1:
            raise ValueError(f"aggregate='constant' needs a positive constant_length, got {constant_length!r}")
        return mask_NT / (sequences * constant_length)
    if aggregate == "prompt_mean":
        if group_ids_N is None:
            raise ValueError("aggregate='prompt_mean' needs group_ids_N, got None")
        unique, group_of_N = torch.unique(group_ids_N.to(mask_NT.device), return_inverse=True)
        tokens_P = mask_NT.new_zeros(len(unique)).index_add_(0, group_of_N, mask_NT.sum(1))
        return mask_NT / (len(unique) * tokens_P.clamp(min=1)[group_of_N, None])
    raise ValueError(f"aggregate: got {aggregate!r}, expected one of {', '.join(get_args(Aggregate))}")


@dataclass(frozen=True)
class TokenGrid:
    """The tokens of completions, as a loss reads them: [N, T] tensors, 0 outside the completions."""

    logprobs_NT: Tensor  # log-probs under the policy; the gradient flows through these alone
    old_logprobs_NT: Tensor  # log-probs in the denominator of the ratio
    advantages_NT: Tensor
    weights_NT: Tensor  # weight of each token in the loss, computed from the whole batch
    mask_NT: Tensor  # bool, tokens that exist
    sampler_logprobs_NT: Tensor | None = None  # log-probs that the sampler reported; None = the old ones
    reference_NT: Tensor | None = None  # log-probs under the reference; None = the algorithm has none
    counted_NT: Tensor | None = None  # bool, tokens that metrics describe; None = all
    rows: tuple[int, ...] = ()  # row of the batch of each completion


@dataclass(frozen=True)
class Objective(Part):
    """A surrogate of the ratio of policy to behavior policy, averaged over tokens and maximized."""

    surrogate: Surrogate = option("clip", "objective of a token")
    ratio: Ratio = option("token", "one ratio for each token, or one for each completion (GSPO)")
    aggregate: Aggregate = option(
        "sequence_mean",
        "weight of a token: mean of each completion, then of the batch; mean over all tokens; mean over the tokens of "
        "each group, then over the groups; or a constant length",
    )
    off_policy_delta: float | None = option(
        None,
        "largest drift of a bad completion, in nats per token; beyond it, no gradient; null = off",
        low=0.0,
    )
    divergence_tv: float | None = option(
        None, "largest change of a token's probability; beyond it, no gradient (DPPO); null = off", low=0.0
    )
    divergence_kl: float | None = option(
        None, "largest binary KL of a token, in nats; beyond it, no gradient (DPPO); null = off", low=0.0
    )

    drift_coef: float = option(
        0.0,
        "weight in the loss of the squared log-ratio of policy to sampler, token by token (prime-rl); 0 = off",
        low=0.0,
    )

    @property
    def range(self) -> tuple[float, float]:
        """(clip_low, clip_high); without a range PPO's, to count the tokens that it would clip."""
        return getattr(self, "clip_low", 0.2), getattr(self, "clip_high", 0.2)

    @property
    def bounded(self) -> bool:
        """Whether there is a range."""
        return hasattr(self, "clip_low")

    @property
    def of_completions(self) -> bool:
        """Whether one ratio moves all tokens of a completion, so that they need one advantage."""
        return self.surrogate == "gmpo" or (self.ratio == "sequence" and self.surrogate != "cispo")

    @property
    def largest_ratio(self) -> float | None:
        """Upper bound of the ratio for negative advantages (dual clip); None = no bound."""
        return getattr(self, "dual_clip", None)

    def gain(self, terms: Terms) -> Tensor:
        """[N, T] what each token adds to the objective."""
        raise NotImplementedError

    def loss(self, tokens: TokenGrid, kl: Kl | None = None, kl_coef: float = 0.0) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the loss, to be minimized: sum of weight * (-gain + kl_coef * KL + drift_coef * drift) over tokens.

        Args:
            tokens: [N, T] tensors; what they hold outside the completions has no effect.
            kl: estimator of the KL, and whether it is multiplied by the ratio; None = the defaults of `Kl`.
            kl_coef: weight of the KL; above 0 it needs `tokens.reference_NT`.

        Returns:
            The scalar loss and the detached scalars of `policy_loss`.
        """
        if kl_coef > 0 and tokens.reference_NT is None:
            raise ValueError(f"kl_coef={kl_coef} needs ref_logprobs_NT")
        # Padding may hold any value, inf and NaN too; it must reach neither the loss nor the gradient.
        mask_NT, (clip_low, clip_high), kl = tokens.mask_NT, self.range, kl or Kl()
        logprobs_NT = _blank(tokens.logprobs_NT, mask_NT)
        old_logprobs_NT = _blank(tokens.old_logprobs_NT.detach(), mask_NT)
        advantages_NT, weights_NT = _blank(tokens.advantages_NT, mask_NT), _blank(tokens.weights_NT, mask_NT)

        # Tokens that the policy moved too far from the sampler count as if they had no advantage.
        sampler_NT = tokens.sampler_logprobs_NT
        sampler_NT = old_logprobs_NT if sampler_NT is None else _blank(sampler_NT, mask_NT)
        limits = self.off_policy_delta, self.divergence_tv, self.divergence_kl
        advantages_NT = _blank(advantages_NT, ~left_out(logprobs_NT, sampler_NT, advantages_NT, mask_NT, *limits))

        ratio_NT = policy_ratios(logprobs_NT, old_logprobs_NT, mask_NT, ratio=self.ratio)
        gain_NT = self.gain(Terms(logprobs_NT, old_logprobs_NT, ratio_NT, advantages_NT, mask_NT))
        if self.is_own:
            is_finite = bool(ratio_NT.isfinite().all())  # else the policy had diverged before
            gain_NT = check_tensor("gain", gain_NT, mask_NT.shape, finite=is_finite)
            if ratio_NT.requires_grad and not gain_NT.requires_grad:
                raise UserError("gain: expected a function of ratio_NT or logprobs_NT, got no gradient: use one")
        if self.largest_ratio is not None:
            bounded_NT = torch.maximum(gain_NT, self.largest_ratio * advantages_NT)
            gain_NT = torch.where(advantages_NT < 0, bounded_NT, gain_NT)
        cost_NT = -gain_NT
        if self.drift_coef > 0:
            cost_NT = cost_NT + self.drift_coef * (logprobs_NT - sampler_NT).square()

        # Reported for surrogates without a range too: the share of tokens that a clip would affect.
        counted_NT = mask_NT if tokens.counted_NT is None else mask_NT & tokens.counted_NT
        ratios_NT = ratio_NT.detach()
        below_NT, above_NT = clipped_tokens(ratios_NT, advantages_NT, clip_low=clip_low, clip_high=clip_high)
        stats = {
            "clip_low_fraction": _masked_mean(below_NT.float(), counted_NT),
            "clip_high_fraction": _masked_mean(above_NT.float(), counted_NT),
            "ratio_mean": _masked_mean(ratios_NT, counted_NT),
            "ratio_max": _blank(ratios_NT, counted_NT).amax() if ratios_NT.numel() else ratios_NT.sum(),
        }
        if tokens.reference_NT is not None:
            kl_NT = kl_estimate(logprobs_NT, _blank(tokens.reference_NT, mask_NT), kind=kl.kl_estimator)
            stats["kl"] = _masked_mean(kl_NT.detach(), mask_NT if kl_coef > 0 else counted_NT)
            if kl_coef > 0:
                cost_NT = cost_NT + kl_coef * (ratio_NT * kl_NT if kl.kl_unbiased else kl_NT)
        return (weights_NT * cost_NT).sum(), stats

    def weights(self, mask_NT: Tensor, *, max_tokens: int) -> Tensor:
        """[N, T] weight of each token in the loss, from the tokens of the whole update; the length is `max_tokens`."""
        return token_weights(mask_NT, aggregate=self.aggregate, constant_length=max_tokens)

    def weights_of_groups(self, mask_NT: Tensor, group_ids_N: Tensor, *, max_tokens: int) -> Tensor:
        """The weights of an update whose rows with the same id are a group; only "prompt_mean" reads these."""
        if self.aggregate == "prompt_mean":
            return token_weights(mask_NT, aggregate="prompt_mean", group_ids_N=group_ids_N)
        return self.weights(mask_NT, max_tokens=max_tokens)


@dataclass(frozen=True)
class Clip(Objective):
    """The clipped surrogate of PPO (arXiv:1707.06347, equation 7), GRPO and DAPO."""

    surrogate: Literal["clip"] = option("clip", "no gradient for a token whose ratio leaves the clip range")
    clip_low: float = option(0.2, "lower clip range: ratio >= 1 - clip_low", low=0.0, below=1.0)
    clip_high: float = option(0.2, "upper clip range: ratio <= 1 + clip_high", low=0.0)
    dual_clip: float | None = option(
        None, "upper bound of the ratio for negative advantages (arXiv:1912.09729); null = no bound", low=1.01
    )

    def gain(self, terms: Terms) -> Tensor:
        """[N, T] min(r A, clip(r) A) of the ratio r and the advantage A."""
        return clip_gain(terms, low=self.clip_low, high=self.clip_high)


@dataclass(frozen=True)
class Plain(Objective):
    """The importance-weighted policy gradient, without a clip."""

    surrogate: Literal["plain"] = option("plain", "ratio times advantage, without a clip")

    def gain(self, terms: Terms) -> Tensor:
        """[N, T] r A of the ratio r and the advantage A."""
        return plain_gain(terms)


def policy_loss(
    logprobs_NT: Tensor,
    old_logprobs_NT: Tensor,
    advantages: Tensor,
    weights_NT: Tensor,
    *,
    surrogate: Surrogate | Gain = "clip",
    ratio: Ratio = "token",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
    off_policy_delta: float | None = None,
    divergence_tv: float | None = None,
    divergence_kl: float | None = None,
    drift_coef: float = 0.0,
    sampler_logprobs_NT: Tensor | None = None,
    ref_logprobs_NT: Tensor | None = None,
    kl_coef: float = 0.0,
    kl: KlKind = "k3",
    kl_unbiased: bool = False,
    mask_NT: Tensor | None = None,
    counted_NT: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the loss of a batch, to be minimized: sum(weights * (surrogate term + kl_coef * KL + drift term)).

    The arguments name an objective, whose `loss` is returned. The surrogate term is minus the gain of a token:
    `clip_gain`, `cispo_gain`, `plain_gain`, `sapo_gain`, `gmpo_gain` or `vespo_gain` (`grouprl.algorithms.surrogates`),
    functions of the ratio r = exp(logprob - old logprob) and the advantage.

    Args:
        logprobs_NT: [N, T] log-probs of the policy; the gradient flows through these alone.
        old_logprobs_NT: [N, T] log-probs of the behavior policy.
        advantages: [N] per completion or [N, T] per token.
        weights_NT: [N, T] from `token_weights`.
        surrogate: "clip", "cispo", "plain", "sapo", "gmpo" or "vespo", as above; or a function of `Terms`.
        ratio: "token", or "sequence": exp(mean log-ratio of the completion), GSPO (arXiv:2507.18071, equation 7).
        clip_low, clip_high: the clip range is [1 - clip_low, 1 + clip_high].
        dual_clip: for A < 0 the term is at most -dual_clip * A (arXiv:1912.09729, equation 5); None = off.
        tau_pos, tau_neg: of `sapo_gain`.
        k_pos, lambda_pos, k_neg, lambda_neg: of `vespo_gain`.
        off_policy_delta: negative advantages of the completions in `too_far` count as 0; None = off.
        divergence_tv, divergence_kl: advantages of the tokens in `diverged` count as 0; None = off.
        drift_coef: weight of the drift term, the squared log-ratio of policy to sampler.
        sampler_logprobs_NT: [N, T] for `too_far`, `diverged` and the drift; defaults to old_logprobs_NT.
        ref_logprobs_NT: [N, T] log-probs of the reference; needed when kl_coef > 0 and for the metric kl.
        kl_coef: weight of the KL term.
        kl: estimator of `kl_estimate`.
        kl_unbiased: the KL term is r times the estimate, with the gradient of both (DeepSeek-V3.2, arXiv:2512.02556,
            unbiased KL estimate): its expected gradient over the behavior policy is that of the KL.
        mask_NT: [N, T] which tokens exist; defaults to weights > 0.
        counted_NT: [N, T] which of them the scalars below describe; defaults to all.

    Returns:
        The scalar loss and detached scalars over the counted tokens: clip_low_fraction, clip_high_fraction,
        ratio_mean, ratio_max, and kl when a reference is given; with a KL term in the loss, kl is over all tokens.

    Raises:
        ValueError: shapes differ, an option is unknown, kl_coef > 0 without ref_logprobs_NT, or a limit of single
            tokens stands beside one ratio that moves the whole completion.
    """
    shape = logprobs_NT.shape
    if logprobs_NT.ndim != 2 or old_logprobs_NT.shape != shape or weights_NT.shape != shape:
        raise ValueError(
            "expected logprobs, old_logprobs and weights of one shape [N, T], got "
            f"{tuple(shape)}, {tuple(old_logprobs_NT.shape)}, {tuple(weights_NT.shape)}"
        )
    if advantages.shape not in (shape, shape[:1]):
        raise ValueError(f"expected advantages of shape [N] or [N, T] = {tuple(shape)}, got {tuple(advantages.shape)}")
    gains: dict[str, Gain] = {
        "clip": lambda terms: clip_gain(terms, low=clip_low, high=clip_high),
        "cispo": lambda terms: cispo_gain(terms, low=clip_low, high=clip_high),
        "plain": plain_gain,
        "sapo": lambda terms: sapo_gain(terms, tau_pos=tau_pos, tau_neg=tau_neg),
        "gmpo": lambda terms: gmpo_gain(terms, low=clip_low, high=clip_high),
        "vespo": lambda terms: vespo_gain(
            terms, k_pos=k_pos, lambda_pos=lambda_pos, k_neg=k_neg, lambda_neg=lambda_neg
        ),
    }
    if isinstance(surrogate, str) and surrogate not in gains:
        raise ValueError(f"surrogate: got {surrogate!r}, expected one of {', '.join(gains)}")
    if kl not in get_args(KlKind):
        raise ValueError(f"kl: got {kl!r}, expected one of {', '.join(get_args(KlKind))}")
    objective = _ArgumentObjective(
        surrogate=surrogate if isinstance(surrogate, str) else "plain",
        ratio=ratio,
        off_policy_delta=off_policy_delta,
        divergence_tv=divergence_tv,
        divergence_kl=divergence_kl,
        drift_coef=drift_coef,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        token_gain=gains[surrogate] if isinstance(surrogate, str) else surrogate,
    )
    has_token_limit = divergence_tv is not None or divergence_kl is not None
    if isinstance(surrogate, str) and objective.of_completions and has_token_limit:  # an algorithm checks its own
        raise ValueError(
            f"divergence_tv, divergence_kl: expected ratio='token' and no surrogate='gmpo' with a limit of single "
            f"tokens, got ratio={ratio!r}, surrogate={surrogate!r}, whose one ratio moves the whole completion"
        )
    tokens = TokenGrid(
        logprobs_NT,
        old_logprobs_NT,
        (advantages if advantages.ndim == 2 else advantages[:, None]).expand_as(logprobs_NT),
        weights_NT,
        weights_NT > 0 if mask_NT is None else mask_NT.bool(),
        sampler_logprobs_NT=sampler_logprobs_NT,
        reference_NT=ref_logprobs_NT,
        counted_NT=counted_NT,
    )
    return objective.loss(tokens, Kl(kl_estimator=kl, kl_unbiased=kl_unbiased), kl_coef)


@dataclass(frozen=True)
class _ArgumentObjective(Objective):
    """The objective that the arguments of `policy_loss` name. Settings have ranges; arguments have none."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    token_gain: Gain = plain_gain

    def __post_init__(self) -> None:
        """Checks no range."""

    def gain(self, terms: Terms) -> Tensor:
        return self.token_gain(terms)


def _blank(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    return torch.where(mask_NT, values_NT, 0.0)


def _masked_mean(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    return _blank(values_NT, mask_NT).sum() / mask_NT.sum().clamp(min=1)
