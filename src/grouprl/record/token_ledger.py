"""What became of every sampled token: the categories in the order in which they are tried; metrics of the filter."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from grouprl.record.metric import Metric

# A token belongs to the first category that applies; `used` are those that none takes.
CATEGORIES: Mapping[str, str] = MappingProxyType(
    {
        "dropped": "in a group that the filter dropped",
        "invalid": "with an invalid reward",
        "truncated": "truncated and masked by `mask_overlong`",
        "no_signal": "with an advantage of 0, mostly in a group without signal",
        "corrected": "masked by `correction`, because sampler and learner disagree",
        "low_entropy": "below the entropy threshold of `entropy_share`",
        "critic_only": "in a step of `critic_warmup`, which updates the critic alone",
        "not_finite": "in a skipped update, whose loss or gradient was not finite",
        "clipped": "without a gradient in the last pass: beyond the clip range, `off_policy_delta` or `divergence_*`",
        "used": "with a gradient from their advantage",
    }
)
_LEAD = "; the first category that applies takes a token, so that all `tokens/...` add up to `completion_tokens`"
LEDGER = tuple(
    Metric(
        f"completions/{name}_mean_length",
        f"Completion length, {name} groups",
        "tokens",
        meaning="mean length of the completions in groups that enter the loss (kept), and in those that the filter "
        "dropped; absent in a step without one or the other",
        worry="when they drift apart: the filter then selects by length, and the policy learns from short or long ones",
        formula=f"sum(T_i) / N of {name} groups",
        section="filters",
    )
    for name in ("kept", "dropped")
) + tuple(
    Metric(
        f"tokens/{name}",
        "What became of the tokens" if name == "used" else f"Tokens: {name.replace('_', ' ')}",
        "tokens",
        meaning=f"completion tokens {CATEGORIES[name]}" + (_LEAD if name == "used" else ""),
        worry="when few are used: the others cost as much to sample without moving the policy",
        section="filters",
    )
    for name in reversed([*CATEGORIES])
)
