"""verl's `policy_loss.loss_mode`, and what its clip, its average and its temperatures mean under each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grouprl.tools.imported.table import Given, Outcome, Rule, listed, unsupported
from grouprl.tools.imported.verl_rules import ACTOR, ESTIMATOR

MODE = f"{ACTOR}policy_loss.loss_mode"
# One mean for each completion, whatever loss_agg_mode says.
_OWN_MEAN = ("sapo", "geo_mean")
_DPPO = {"dppo_tv": "algorithm.divergence_tv", "dppo_kl": "algorithm.divergence_kl"}
_MODES: Mapping[str, Mapping[str, Any]] = {
    "vanilla": {},
    # Its token form has the gradient of the completion's ratio where a completion has one advantage.
    "gspo": {"algorithm.ratio": "sequence", "algorithm.dual_clip": None},
    "sapo": {"algorithm.surrogate": "sapo"},
    "cispo": {"algorithm.surrogate": "cispo"},
    "geo_mean": {"algorithm.surrogate": "gmpo"},
}


def loss_mode(given: Given, value: Any) -> Outcome:
    """The surrogate."""
    if value in _DPPO:
        return _dppo(given, value)
    if value not in _MODES:
        return unsupported(f"expected one of {listed((*_MODES, *_DPPO))}")
    if value in ("gspo", "geo_mean") and given[ESTIMATOR] == "gae":
        return unsupported("expected one advantage for each completion: adv_estimator: grpo or rloo")
    return Outcome("equal", _MODES[value])


def clip_of(side: str) -> Rule:
    """The lower or upper clip, which is one of the log-ratio with geo_mean, and a divergence with dppo_*."""

    def rule(given: Given, value: Any) -> Outcome:
        return _clip(given[MODE], side, value) if value is not None else Outcome("equal", words="see clip_ratio")

    return rule


def clip_ratio(given: Given, value: Any) -> Outcome:
    """The clip where clip_ratio_low and clip_ratio_high are null, which they are not by default."""
    sides = {side: given[f"{ACTOR}clip_ratio_{side}"] for side in ("low", "high")}
    outcomes = [_clip(given[MODE], side, value) for side, own in sides.items() if own is None]
    if not outcomes:
        words = f"{value} has no effect: clip_ratio_low={sides['low']} and clip_ratio_high={sides['high']} apply"
        return Outcome("not needed", words=words)
    return Outcome(outcomes[0].verdict, {key: own for one in outcomes for key, own in one.ours.items()})


def largest_ratio(given: Given, value: Any) -> Outcome:
    """The bound of the dual clip."""
    mode = given[MODE]
    if mode == "vanilla":
        return Outcome("equal", {"algorithm.dual_clip": value})
    return Outcome("not needed", words="see loss_mode" if mode in _DPPO else f"no effect with {mode}")


def aggregate(given: Given, value: Any) -> Outcome:
    """The mean of the loss."""
    if given[MODE] in _OWN_MEAN:
        return Outcome(
            "equal", {"algorithm.aggregate": "sequence_mean"}, f"{given[MODE]} always has one mean per completion"
        )
    known = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean", "seq-mean-token-sum-norm": "constant"}
    if value not in known:
        return unsupported(f"expected one of {listed(known)}")
    factor = given[f"{ACTOR}loss_scale_factor"]
    if known[value] == "constant" and factor not in (None, given["data.max_response_length"]):
        return unsupported("expected loss_scale_factor to be null or data.max_response_length")
    return Outcome("equal", {"algorithm.aggregate": known[value]})


def temperature_of_sapo(key: str) -> Rule:
    """A temperature of the soft gate, where there is one."""

    def rule(given: Given, value: Any) -> Outcome:
        return Outcome("equal", {key: value}) if given[MODE] == "sapo" else Outcome("not needed", words="see loss_mode")

    return rule


def _clip(mode: str, side: str, value: float) -> Outcome:
    if mode == "sapo":
        return Outcome("not needed", words="no effect with sapo")
    if mode in _DPPO:
        return Outcome("not needed", words="see loss_mode")
    if mode == "geo_mean":
        edge = -math.expm1(-value) if side == "low" else math.expm1(value)
        return Outcome("equal", {f"algorithm.clip_{side}": edge}, f"a log-ratio of {value}")
    if mode == "cispo" and side == "low" and value > 1:  # a ratio is never below 0
        return Outcome("equal", {"algorithm.clip_low": 1.0}, f"{value}: no lower bound")
    return Outcome("equal", {f"algorithm.clip_{side}": value})


def _dppo(given: Given, value: str) -> Outcome:
    """A detached ratio with an upper bound, CISPO's, and the mask on probabilities."""
    sides = [given[f"{ACTOR}clip_ratio_{side}"] for side in ("low", "high")]
    low, high = (given[f"{ACTOR}clip_ratio"] if own is None else own for own in sides)
    if low != high:
        return unsupported(f"expected clip_ratio_low equal to clip_ratio_high, one divergence, got {low} and {high}")
    weights = {"algorithm.clip_low": 1.0, "algorithm.clip_high": given[f"{ACTOR}clip_ratio_c"] - 1}
    return Outcome("equal", {"algorithm.surrogate": "cispo", **weights, _DPPO[value]: low})
