"""An update rule as data: every field names an option of a pure function in `grouprl.algorithms`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grouprl.types import UserError

Baseline = Literal["mean", "leave_one_out", "batch_mean", "none"]
Centre = Literal["mean", "leave_one_out", "batch_mean", "none", "constant", "critic"]
Scale = Literal["group_std", "batch_std", "none"]
Std = Literal["population", "sample"]
Credit = Literal["completion", "step", "token"]
Mix = Literal["sum_then_normalise", "normalise_then_sum"]
Surrogate = Literal["clip", "cispo", "plain"]
Ratio = Literal["token", "sequence"]
Aggregate = Literal["sequence_mean", "token_mean", "constant"]
KlKind = Literal["k1", "k2", "k3"]
KlPlace = Literal["loss", "reward"]
Correction = Literal["none", "truncate", "mask"]
CriticKind = Literal["none", "copy", "shared"]


@dataclass(frozen=True)
class Algorithm:
    """Which of the family, option by option.

    The defaults are GRPO with outcome supervision (DeepSeekMath, arXiv:2402.03300, section 4.1.2);
    `algorithms.named` lists the family, docs/algorithms.md explains it.
    Raises UserError for a value out of range, and for two fields that make no sense together, naming both.
    """

    name: str = "grpo"

    # From rewards to advantages
    baseline: Centre = "mean"  # what is subtracted; "critic" = generalised advantage estimation
    baseline_constant: float = 0.0  # of "constant"
    scale: Scale = "group_std"  # what divides
    std: Std = "population"
    eps: float = 1e-6  # added to the deviation
    credit: Credit = "completion"  # one advantage per completion, from the steps to come, or from the tokens to come
    reward_mix: Mix = "sum_then_normalise"  # of several rewards: advantage of their sum, or sum of their advantages
    gamma: float = 1.0  # discount between tokens, for credit "token"
    lam: float = 0.95  # of generalised advantage estimation: 0 trusts the critic, 1 the rewards

    # Which groups and completions are learned from
    drop_equal: bool = False  # groups without signal leave the batch and its denominators
    drop_below: float | None = None  # so do groups whose mean reward is lower
    drop_above: float | None = None  # or higher
    refills: int = 0  # rounds of further problems sampled in the place of dropped groups
    overlong_buffer: float = 0.0  # last share of max_tokens in which the reward falls by up to 1
    mask_overlong: bool = False  # completions cut at max_tokens are judged, but not learned from

    # The objective
    surrogate: Surrogate = "clip"
    ratio: Ratio = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None  # bound of the ratio where the advantage is negative
    aggregate: Aggregate = "sequence_mean"
    entropy_coef: float = 0.0  # bonus for entropy
    entropy_share: float = 1.0  # share of the tokens, those of highest entropy, that the advantages reach
    correction: Correction = "none"  # of a sampler whose log-probs are not the learner's
    correction_level: Ratio = "token"
    correction_cap: float = 2.0  # weights above it are cut to it, or masked
    correction_floor: float = 0.5  # weights below it are masked

    # The anchor
    kl_coef: float = 0.04
    kl: KlKind = "k3"
    kl_in: KlPlace = "loss"
    kl_target: float | None = None  # nats per token that kl_coef is steered towards
    kl_rate: float = 0.1  # how fast
    refresh_reference: int = 0  # steps after which the reference becomes the policy; 0 = never

    # The updates
    passes: int = 1  # mu: times each batch is learned from
    minibatches: int = 1  # updates in a pass
    critic: CriticKind = "none"  # a value head on a copy of the policy, or on the policy itself
    critic_warmup: int = 0  # steps in which the critic alone learns
    value_coef: float = 0.1  # of the value loss, where critic and policy share the trunk
    value_clip: float | None = 0.2  # how far a value may move from what it was at sampling

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            got = getattr(self, name)
            if got not in get_args(allowed):
                raise UserError(f"algorithm.{name}: got {got!r}, expected one of {', '.join(get_args(allowed))}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (low <= value <= high and math.isfinite(value)):
                bounds = f"{low} to {high}" if math.isfinite(high) else f"at least {low}"
                raise UserError(f"algorithm.{name}: {value!r} is out of range, expected {bounds}")
        for field, other, why in _contradictions(self):
            raise UserError(
                f"algorithm.{field}: expected another value with algorithm.{other}={getattr(self, other)!r}, "
                f"got {getattr(self, field)!r}: {why}"
            )

    @property
    def comparison(self) -> dict[str, Any]:
        """How whole completions are compared: the options of `algorithms.completion_advantages`."""
        return {name: getattr(self, name) for name in ("baseline", "baseline_constant", "scale", "std", "eps")}

    @property
    def filters(self) -> dict[str, Any]:
        """Which groups are learned from: the options of `algorithms.kept_groups`."""
        return {name: getattr(self, name) for name in ("drop_equal", "drop_below", "drop_above")}

    @property
    def uses_reference(self) -> bool:
        """Whether a frozen reference is needed."""
        return self.kl_coef > 0


_CHOICES = {
    "baseline": Centre,
    "scale": Scale,
    "std": Std,
    "credit": Credit,
    "reward_mix": Mix,
    "surrogate": Surrogate,
    "ratio": Ratio,
    "aggregate": Aggregate,
    "kl": KlKind,
    "kl_in": KlPlace,
    "correction": Correction,
    "correction_level": Ratio,
    "critic": CriticKind,
}
_RANGES: dict[str, tuple[float, float]] = {
    "baseline_constant": (-math.inf, math.inf),
    "drop_below": (-math.inf, math.inf),
    "drop_above": (-math.inf, math.inf),
    "eps": (0.0, 1.0),
    "gamma": (0.0, 1.0),
    "lam": (0.0, 1.0),
    "refills": (0, 100),
    "overlong_buffer": (0.0, 1.0),
    "clip_low": (0.0, 1.0),
    "clip_high": (0.0, math.inf),
    "dual_clip": (1.01, math.inf),
    "entropy_coef": (0.0, math.inf),
    "entropy_share": (1e-6, 1.0),
    "correction_cap": (1.0, math.inf),
    "correction_floor": (0.0, 1.0),
    "kl_coef": (0.0, math.inf),
    "kl_target": (1e-9, math.inf),
    "kl_rate": (0.0, 1.0),
    "refresh_reference": (0, math.inf),
    "passes": (1, math.inf),
    "minibatches": (1, math.inf),
    "critic_warmup": (0, math.inf),
    "value_coef": (0.0, math.inf),
    "value_clip": (1e-9, math.inf),
}


# Fields that do nothing unless another has one of these values.
_ONLY_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "lam": ("critic", ("copy", "shared")),
    "value_clip": ("critic", ("copy", "shared")),
    "value_coef": ("critic", ("shared",)),
    "correction_level": ("correction", ("truncate", "mask")),
    "correction_cap": ("correction", ("truncate", "mask")),
    "correction_floor": ("correction", ("mask",)),
    "clip_low": ("surrogate", ("clip", "cispo")),
    "clip_high": ("surrogate", ("clip", "cispo")),
    "std": ("scale", ("group_std", "batch_std")),
    "eps": ("scale", ("group_std", "batch_std")),
}


def _contradictions(a: Algorithm) -> Iterator[tuple[str, str, str]]:
    """Field, the field it contradicts, and the remedy."""
    for wrong, field, other, why in (*_of_advantages(a), *_of_updates(a)):
        if wrong:
            yield field, other, why
    for field, (other, needed) in _ONLY_WITH.items():
        if getattr(a, field) != getattr(Algorithm, field) and getattr(a, other) not in needed:
            yield field, other, f"it has no effect there; set {other} to {' or '.join(needed)}, or leave {field} out"


_Pair = tuple[bool, str, str, str]
_OF_GROUPS = ("mean", "leave_one_out")  # baselines that compare a completion with its own group


def _of_advantages(a: Algorithm) -> tuple[_Pair, ...]:
    return (
        (a.baseline == "critic" and a.critic == "none", "baseline", "critic", "set critic to copy or shared"),
        (a.critic != "none" and a.baseline != "critic", "critic", "baseline", "set baseline=critic"),
        (a.baseline == "critic" and a.credit != "token", "baseline", "credit", "a critic values tokens: credit=token"),
        (
            a.credit == "step" and a.baseline != "mean",
            "credit",
            "baseline",
            "steps are compared with the mean of the group's steps: baseline=mean",
        ),
        (a.credit == "step" and a.scale != "group_std", "credit", "scale", "set scale=group_std"),
        (
            a.scale == "group_std" and a.baseline not in _OF_GROUPS,
            "scale",
            "baseline",
            "the deviation of a group belongs to its mean: set scale to batch_std or none",
        ),
        (
            a.kl_in == "reward" and a.kl_coef > 0 and a.credit == "completion" and a.scale != "none",
            "kl_in",
            "scale",
            "equal rewards would be divided by the noise of their KL: set scale=none, or credit=token",
        ),
        (a.credit == "step" and a.kl_in == "reward", "credit", "kl_in", "set kl_in=loss"),
        (a.baseline_constant != 0 and a.baseline != "constant", "baseline_constant", "baseline", "baseline=constant"),
        (
            a.reward_mix == "normalise_then_sum" and a.credit != "completion",
            "reward_mix",
            "credit",
            "set credit=completion",
        ),
        (
            a.reward_mix == "normalise_then_sum" and a.kl_in == "reward",
            "reward_mix",
            "kl_in",
            "set kl_in=loss",
        ),
        (a.baseline == "constant" and a.scale != "none", "baseline", "scale", "set scale=none"),
        (
            a.reward_mix == "normalise_then_sum" and a.baseline == "constant",
            "reward_mix",
            "baseline",
            "the constant would be subtracted once for each reward: set baseline=none",
        ),
        (a.gamma != 1 and a.credit != "token", "gamma", "credit", "discounts are between tokens: credit=token"),
    )


def _of_updates(a: Algorithm) -> tuple[_Pair, ...]:
    drops = a.drop_equal or a.drop_below is not None or a.drop_above is not None
    return (
        (a.refills > 0 and not drops, "refills", "drop_equal", "nothing is dropped: set drop_equal=true"),
        (
            a.drop_equal and a.baseline not in _OF_GROUPS,
            "drop_equal",
            "baseline",
            "groups of equal rewards have a signal there: set baseline=mean",
        ),
        (a.drop_equal and a.credit == "step", "drop_equal", "credit", "equal answers may have different steps"),
        (
            a.drop_equal and a.reward_mix == "normalise_then_sum",
            "drop_equal",
            "reward_mix",
            "equal sums may have different parts: set reward_mix=sum_then_normalise",
        ),
        (
            a.drop_below is not None and a.drop_above is not None and a.drop_below > a.drop_above,
            "drop_below",
            "drop_above",
            "every group would be dropped: lower drop_below",
        ),
        (
            a.clip_low >= 1 and a.surrogate == "clip",
            "clip_low",
            "surrogate",
            "a ratio is never below 0, so nothing would be clipped: set clip_low below 1",
        ),
        *(
            (whole and unequal, field, "ratio", "one ratio for the completion moves all of its tokens: set ratio=token")
            for whole in (a.ratio == "sequence" and a.surrogate != "cispo",)
            for unequal, field in (
                (a.credit != "completion", "credit"),
                (a.entropy_share < 1, "entropy_share"),
                (a.correction != "none" and a.correction_level == "token", "correction_level"),
            )
        ),
        (a.dual_clip is not None and a.surrogate != "clip", "dual_clip", "surrogate", "set surrogate=clip"),
        (a.kl_target is not None and a.kl_coef == 0, "kl_target", "kl_coef", "0 cannot be steered: set kl_coef"),
        (a.kl_rate != Algorithm.kl_rate and a.kl_target is None, "kl_rate", "kl_target", "set kl_target"),
        (a.refresh_reference > 0 and a.kl_coef == 0, "refresh_reference", "kl_coef", "there is no reference"),
        (a.critic_warmup > 0 and a.critic != "copy", "critic_warmup", "critic", "set critic=copy"),
    )
