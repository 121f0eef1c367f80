"""Computes log-probs of given tokens from hidden states without keeping the full logits.

Sampler and learner truncate logits by one function, so that the two cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grouprl.forward.compiled import kernels
from grouprl.forward.products import padded_call
from grouprl.types import Sampling

# 128 MiB of float32, or 220 rows of a vocabulary of 152,000. Each chunk reads the whole head, so small chunks are slow.
CHUNK_ELEMENTS = 1 << 25
KEPT_LOGITS = 1 << 22  # most logits of a single chunk that the kernel keeps for the backward pass
ARRAYS = 8  # arrays of the logits' size that torch holds at once; the kernel holds one


def chunk_rows(vocabulary: int, elements: int = CHUNK_ELEMENTS, *, arrays: int = 1) -> int:
    """The tokens of a chunk, of whose logits so many arrays are in memory at once."""
    return max(1, elements // arrays // vocabulary)


@dataclass(frozen=True)
class Context:
    """What stands before each of S predicted tokens, for a repetition penalty and for a structure."""

    ids_NW: Tensor  # prompt and completion of each row, padded
    row_S: Tensor  # row of each token
    before_S: Tensor  # tokens of its row that stand before it, at least 1
    states_S: Tensor  # states of the structure's automaton; 0 without one

    def seen(self, part: slice, width: int) -> Tensor:
        """[rows of the part, width] bool: which tokens of the vocabulary stand before."""
        ids_SW = self.ids_NW[self.row_S[part]]
        places_W = torch.arange(ids_SW.shape[1], device=ids_SW.device)
        # In the place of later tokens: the first token, which stands before every other.
        ids_SW = torch.where(places_W < self.before_S[part, None], ids_SW, ids_SW[:, :1])
        return torch.zeros(len(ids_SW), width, dtype=torch.bool, device=ids_SW.device).scatter_(1, ids_SW, True)


def token_logprobs(
    head: nn.Module,
    hidden_SH: Tensor,
    targets_S: Tensor,
    sampling: Sampling,
    *,
    entropy_gradient: bool = False,
    context: Context | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target token, and the entropy of its distribution, both under `sampling`.

    It computes logits in chunks, and again in the backward pass; at most `chunk_elements` of them are in memory.

    Args:
        head: maps [S, H] to [S, V] (the model's output embedding).
        hidden_SH: [S, H] last hidden states that predict the targets.
        targets_S: [S] token ids.
        sampling: temperature, truncation, penalty and structure of the policy; truncation never cuts a target.
        entropy_gradient: whether the entropies take a gradient too.
        context: of the targets; needed for a repetition penalty or a structure.
        chunk_elements: upper bound of the floats in memory at once, without the gradient of the head.

    Returns:
        ([S] log-probs, [S] entropies in nats), float32, differentiable in hidden states and head.
    """
    vocabulary = int(head.weight.shape[0])  # type: ignore[index]
    are_floats = {hidden_SH.dtype, head.weight.dtype} <= {torch.float32, torch.bfloat16}
    has_kernel = type(head) is nn.Linear and are_floats and hidden_SH.device.type == "cpu"
    if has_kernel and sampling.only_scales and not entropy_gradient:
        assert isinstance(head, nn.Linear)
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else hidden_SH.dtype
        if (compiled := kernels()) is not None and compiled.has_logprobs(len(head.weight), dtype):
            rows = chunk_rows(vocabulary, chunk_elements)
            return compiled.logprobs(head, hidden_SH.to(dtype), targets_S, sampling.temperature, rows)
    rows = chunk_rows(vocabulary, chunk_elements, arrays=ARRAYS)
    if len(targets_S) <= rows:
        return chunk_logprobs(head, hidden_SH, targets_S, sampling, entropy_gradient, context)
    parts = [
        checkpoint(
            chunk_logprobs,
            head,
            hidden_SH[at : at + rows],
            targets_S[at : at + rows],
            sampling,
            entropy_gradient,
            context,
            at,
            use_reentrant=False,
        )
        for at in range(0, len(targets_S), rows)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def chunk_logprobs(
    head: nn.Module,
    hidden_SH: Tensor,
    targets_S: Tensor,
    sampling: Sampling,
    entropy_gradient: bool,
    context: Context | None = None,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of tokens whose logits are in memory at once; row 0 is row `first` of the context."""
    logits_SV = padded_call(head, hidden_SH).float()
    part = slice(first, first + len(logits_SV))
    if sampling.penalizes:
        assert context is not None
        logits_SV = penalize(logits_SV, context.seen(part, logits_SV.shape[1]), sampling)
    if sampling.structure is not None:
        assert context is not None
        logits_SV = sampling.structure.restrict(logits_SV, context.states_S[part])
    logprobs_SV = torch.log_softmax(truncate_logits(logits_SV, sampling, keep_N=targets_S), dim=-1)
    counted_SV = logprobs_SV if entropy_gradient else logprobs_SV.detach()
    # A token that is cut has log-prob -inf and probability 0: its share of the entropy is 0, not NaN.
    entropies_S = -(counted_SV.exp() * counted_SV.clamp(min=-1e9)).sum(-1)
    return logprobs_SV.gather(1, targets_S[:, None])[:, 0], entropies_S


def penalize(logits_NV: Tensor, seen_NV: Tensor, sampling: Sampling) -> Tensor:
    """[N, V] logits with the repetition penalty on the tokens that are marked in `seen_NV`, [N, V] bool."""
    penalty = sampling.repetition_penalty
    return torch.where(seen_NV, torch.where(logits_NV > 0, logits_NV / penalty, logits_NV * penalty), logits_NV)


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
    detached_NV = scaled_NV.detach()
    cut_NV = torch.zeros_like(detached_NV, dtype=torch.bool)
    if 0 < sampling.top_k < detached_NV.shape[1]:
        cut_NV = detached_NV < detached_NV.topk(sampling.top_k, dim=1).values[:, -1:]
    if sampling.top_p < 1.0:
        sorted_NV = detached_NV.masked_fill(cut_NV, -torch.inf).sort(dim=1, descending=True).values
        mass_NV = sorted_NV.softmax(1)
        before_NV = mass_NV.cumsum(1) - mass_NV
        # A threshold instead of ranks, because the order of equal logits in a sort is undefined.
        last_N1 = sorted_NV.masked_fill(before_NV >= sampling.top_p, torch.inf).amin(1, keepdim=True)
        cut_NV = cut_NV | (detached_NV < last_N1)
    if sampling.min_p > 0.0:
        # p >= min_p * p_max can compare logits, which differ from log p by one constant per row.
        threshold_N1 = detached_NV.amax(1, keepdim=True) + torch.tensor(sampling.min_p).log()
        cut_NV = cut_NV | (detached_NV < threshold_N1)
    if keep_N is not None:
        cut_NV = cut_NV.scatter(1, keep_N[:, None], False)
    return scaled_NV.masked_fill(cut_NV, -torch.inf)
