"""Combines the metrics of packs into those of an update, and of updates into those of a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from grouprl.learner.packs import Pack


def pack_metrics(pack: Pack, stats: Mapping[str, Tensor]) -> dict[str, float]:
    """The metrics of one pack as plain numbers, with its count of completion tokens."""
    return {"tokens": float(len(pack.row_C)), **{name: float(value.detach()) for name, value in stats.items()}}


def combined(metrics: Sequence[dict[str, float]]) -> dict[str, float]:
    """Combines the packs' metrics: sums of losses, maxima of maxima, token-weighted means of the others."""
    tokens = sum(pack["tokens"] for pack in metrics)
    combined: dict[str, float] = {}
    for name in metrics[0] if metrics else ():
        values = [pack[name] for pack in metrics]
        if name in ("loss", "value_loss", "router_aux_loss"):
            combined[name] = sum(values)
        elif name in ("sampler_learner_gap", "ratio_max"):
            combined[name] = max(values)
        elif name != "tokens":
            combined[name] = sum(v * pack["tokens"] for v, pack in zip(values, metrics, strict=True)) / tokens
    return combined


def averaged(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Averages the metrics of a pass over its updates; `ratio_max` is the largest."""
    names = dict.fromkeys(name for update in updates for name in update)
    columns = {name: [update[name] for update in updates if name in update] for name in names}
    return {name: max(values) if name == "ratio_max" else sum(values) / len(values) for name, values in columns.items()}
