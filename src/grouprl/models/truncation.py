"""Truncates logits for the sampler and for the learner by one function, so that the two cannot differ."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.types import Sampling


def truncate_logits(logits_NV: Tensor, sampling: Sampling, keep_N: Tensor | None = None) -> Tensor:
    """Divides logits by the temperature and sets those of cut tokens to -inf.

    The order is top_k, then top_p on the remaining tokens, then min_p; ties at a threshold stay.

    Args:
        logits_NV: [N, V] float32.
        sampling: temperature above 0, top_k, top_p and min_p.
        keep_N: [N] token ids that are never cut, because the learner's policy moves after they are drawn.

    Returns:
        [N, V].
    """
    scaled_NV = logits_NV / sampling.temperature if sampling.temperature != 1.0 else logits_NV
    if not sampling.truncates:
        return scaled_NV
    cut_NV = _cut(scaled_NV.detach(), sampling)
    if keep_N is not None:
        cut_NV = cut_NV.scatter(1, keep_N[:, None], False)
    return scaled_NV.masked_fill(cut_NV, -torch.inf)


def _cut(scaled_NV: Tensor, sampling: Sampling) -> Tensor:
    cut_NV = torch.zeros_like(scaled_NV, dtype=torch.bool)
    if 0 < sampling.top_k < scaled_NV.shape[1]:
        cut_NV = scaled_NV < scaled_NV.topk(sampling.top_k, dim=1).values[:, -1:]
    if sampling.top_p < 1.0:
        sorted_NV = scaled_NV.masked_fill(cut_NV, -torch.inf).sort(dim=1, descending=True).values
        mass_NV = sorted_NV.softmax(1)
        before_NV = mass_NV.cumsum(1) - mass_NV
        # A threshold instead of ranks, because the order of equal logits in a sort is undefined.
        last_N1 = sorted_NV.masked_fill(before_NV >= sampling.top_p, torch.inf).amin(1, keepdim=True)
        cut_NV = cut_NV | (scaled_NV < last_N1)
    if sampling.min_p > 0.0:
        # p >= min_p * p_max can compare logits, which differ from log p by one constant per row.
        threshold_N1 = scaled_NV.amax(1, keepdim=True) + torch.tensor(sampling.min_p).log()
        cut_NV = cut_NV | (scaled_NV < threshold_N1)
    return cut_NV
