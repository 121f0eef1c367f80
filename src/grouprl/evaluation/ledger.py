"""Counts what became of every sampled token of a step: the signal ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, compress
from operator import not_
from statistics import fmean

import torch
from torch import Tensor

from grouprl.types import Group, RewardOutcome

# A token belongs to the first category that applies; metrics.json says what each is.
CATEGORIES = (
    *("dropped", "invalid", "truncated", "no_signal", "corrected"),
    *("low_entropy", "critic_only", "not_finite", "clipped", "used"),
)


def token_ledger(
    groups: Sequence[Group],
    outcomes: Sequence[Sequence[RewardOutcome]],
    is_kept_P: Sequence[bool],
    unused: Mapping[str, Tensor],
) -> Mapping[str, float]:
    """Counts the groups of a step, and its tokens by what became of them.

    These are the metrics `groups/...` and `tokens/...`; the latter add up to the tokens that were sampled. The mean
    lengths of kept and of dropped completions come where there are both.

    Args:
        groups: all groups of the step.
        outcomes: [P][G] their rewards.
        kept: [P] whether the group entered the loss.
        unused: [N, T] bool of the kept groups' tokens by category, from the learner; a token may be in several.
    """
    counts = dict.fromkeys(CATEGORIES, 0)
    lengths = [[len(completion) for completion in group.completions] for group in groups]
    counts["dropped"] = sum(
        sum(group_lengths) for group_lengths, keep in zip(lengths, is_kept_P, strict=True) if not keep
    )
    lengths_N = torch.tensor([length for group_lengths in compress(lengths, is_kept_P) for length in group_lengths])
    if len(lengths_N):
        left_NT = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
        valid_N = torch.tensor([outcome.valid for row in compress(outcomes, is_kept_P) for outcome in row])
        reasons = {"invalid": ~valid_N[:, None], **unused}
        for name in CATEGORIES:
            if name in reasons:
                counts[name] = int((left_NT & reasons[name]).sum())
                left_NT = left_NT & ~reasons[name]
        counts["used"] = int(left_NT.sum())
    sampled = {"groups/sampled": len(groups), "groups/kept": sum(is_kept_P)}
    return sampled | lengths_by_filter(lengths, is_kept_P) | {f"tokens/{name}": count for name, count in counts.items()}


def lengths_by_filter(lengths: Sequence[Sequence[int]], is_kept_P: Sequence[bool]) -> dict[str, float]:
    """The mean lengths [P][G] of completions in kept groups and in dropped ones, where there are both."""
    parts = {"kept": compress(lengths, is_kept_P), "dropped": compress(lengths, map(not_, is_kept_P))}
    means = {f"completions/{name}_mean_length": list(chain.from_iterable(part)) for name, part in parts.items()}
    return {name: fmean(part) for name, part in means.items()} if all(means.values()) else {}
