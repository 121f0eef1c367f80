"""The objectives that an algorithm can have: a surrogate, a ratio, and an average over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from grouprl.algorithms.kl import KlKind
from grouprl.algorithms.losses import Ratio, Surrogate, clipped_tokens, policy_loss, policy_ratios
from grouprl.algorithms.option import Part, option
from grouprl.algorithms.weights import Aggregate, token_weights


@dataclass(frozen=True)
class Objective(Part):
    """A surrogate of the ratio of policy to behavior policy, averaged over tokens and maximized."""

    surrogate: Surrogate = option("clip", "which")
    ratio: Ratio = option("token", "one ratio for each token, or one for the completion (GSPO)")
    aggregate: Aggregate = option(
        "sequence_mean", "mean of each completion, then of the batch; mean over all tokens; or a constant length"
    )

    @property
    def range(self) -> tuple[float, float]:
        """(clip_low, clip_high); for a plain surrogate PPO's range, to count the tokens that it would clip."""
        return getattr(self, "clip_low", 0.2), getattr(self, "clip_high", 0.2)

    @property
    def largest_ratio(self) -> float | None:
        """Upper bound of the ratio for negative advantages (dual clip); None = no bound."""
        return getattr(self, "dual_clip", None)

    def loss(
        self,
        logprobs_NT: Tensor,
        old_logprobs_NT: Tensor,
        advantages: Tensor,
        weights_NT: Tensor,
        *,
        ref_logprobs_NT: Tensor | None = None,
        kl_coef: float = 0.0,
        kl: KlKind = "k3",
        mask_NT: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `policy_loss`."""
        low, high = self.range
        return policy_loss(
            logprobs_NT,
            old_logprobs_NT,
            advantages,
            weights_NT,
            surrogate=self.surrogate,
            ratio=self.ratio,
            clip_low=low,
            clip_high=high,
            dual_clip=self.largest_ratio,
            ref_logprobs_NT=ref_logprobs_NT,
            kl_coef=kl_coef,
            kl=kl,
            mask_NT=mask_NT,
        )

    def ratios(self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, T]; see `policy_ratios`."""
        return policy_ratios(logprobs_NT, old_logprobs_NT, mask_NT, ratio=self.ratio)

    def clipped(self, ratios_NT: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """([N, T] bool, [N, T] bool); see `clipped_tokens`."""
        low, high = self.range
        return clipped_tokens(ratios_NT, advantages, clip_low=low, clip_high=high, surrogate=self.surrogate)

    def weights(self, mask_NT: Tensor, *, max_tokens: int) -> Tensor:
        """[N, T]; see `token_weights`."""
        return token_weights(mask_NT, aggregate=self.aggregate, constant_length=max_tokens)


@dataclass(frozen=True)
class Clip(Objective):
    """The clipped surrogate of PPO (arXiv:1707.06347, equation 7), GRPO and DAPO."""

    surrogate: Literal["clip"] = option("clip", "a token whose ratio leaves the range gets no gradient")
    clip_low: float = option(0.2, "lower clip range: ratio >= 1 - clip_low", low=0.0, below=1.0)
    clip_high: float = option(0.2, "upper clip range: ratio <= 1 + clip_high", low=0.0)
    dual_clip: float | None = option(
        None, "largest ratio where the advantage is negative (arXiv:1912.09729); null = no bound", low=1.01
    )


@dataclass(frozen=True)
class Cispo(Objective):
    """Bounds the detached ratio and keeps the gradient (MiniMax-M1, arXiv:2506.13585, equation 4)."""

    surrogate: Literal["cispo"] = option("cispo", "the weight of a token is bounded, its gradient stays")
    clip_low: float = option(0.2, "smallest weight: 1 - clip_low", low=0.0, high=1.0)
    clip_high: float = option(0.2, "largest weight: 1 + clip_high", low=0.0)


@dataclass(frozen=True)
class Plain(Objective):
    """The importance-weighted policy gradient, without a clip."""

    surrogate: Literal["plain"] = option("plain", "ratio times advantage, without a clip")
