"""Combines the metrics of packs into those of an update, and of updates into those of a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

PackMetrics = dict[str, tuple[float, float]]
"""Of each metric its value, and the number of tokens that it describes."""


def pack_metrics(stats: Mapping[str, Tensor], tokens: Mapping[str, int], others: int) -> PackMetrics:
    """The metrics of one pack as plain numbers; `others` counts the tokens of those that `tokens` does not name."""
    return {name: (float(value.detach()), tokens.get(name, others)) for name, value in stats.items()}


def combined(metrics: Sequence[PackMetrics]) -> dict[str, float]:
    """Combines the packs' metrics: sums of losses, maxima of maxima, token-weighted means of the others.

    A metric that describes no token of any pack is absent.
    """
    combined: dict[str, float] = {}
    for name in metrics[0] if metrics else ():
        found = [pack[name] for pack in metrics if pack[name][1]]
        if not found:
            continue
        if name in ("loss", "value_loss", "router_aux_loss"):
            combined[name] = sum(value for value, _ in found)
        elif name in ("sampler_learner_gap", "ratio_max"):
            combined[name] = max(value for value, _ in found)
        else:
            combined[name] = sum(value * count for value, count in found) / sum(count for _, count in found)
    return combined


def averaged(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Averages the metrics of a pass over its updates; `ratio_max` is the largest."""
    names = dict.fromkeys(name for update in updates for name in update)
    columns = {name: [update[name] for update in updates if name in update] for name in names}
    return {name: max(values) if name == "ratio_max" else sum(values) / len(values) for name, values in columns.items()}
