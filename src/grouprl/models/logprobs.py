"""Computes log-probs of given tokens from hidden states without keeping the full logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grouprl.models.kernels import fits, linear_logprobs
from grouprl.models.precision import padded_rows
from grouprl.models.truncation import truncate_logits
from grouprl.types import Sampling

# 128 MiB of float32, or 220 rows of a vocabulary of 152,000. Each chunk reads the whole head, so small chunks are slow.
CHUNK_ELEMENTS = 1 << 25
_ARRAYS = 8  # arrays of the logits' size that torch holds at once; the kernel holds one


def token_logprobs(
    head: nn.Module,
    hidden_SH: Tensor,
    targets_S: Tensor,
    sampling: Sampling,
    *,
    entropy_gradient: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target token, and the entropy of its distribution, both under `sampling`.

    It computes logits in chunks, and again in the backward pass; at most `chunk_elements` of them are in memory.

    Args:
        head: maps [S, H] to [S, V] (the model's output embedding).
        hidden_SH: [S, H] last hidden states that predict the targets.
        targets_S: [S] token ids.
        sampling: temperature and truncation of the policy; a target is never cut.
        entropy_gradient: whether the entropies take a gradient too.
        chunk_elements: upper bound of the floats in memory at once, without the gradient of the head.

    Returns:
        ([S] log-probs, [S] entropies in nats), float32, differentiable in hidden states and head.
    """
    vocabulary = head.weight.shape[0]  # type: ignore[index]
    rows = max(1, chunk_elements // int(vocabulary))
    if _kernel_serves(head, hidden_SH) and not sampling.truncates and not entropy_gradient:
        assert isinstance(head, nn.Linear)
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else hidden_SH.dtype
        weight, bias = head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
        hidden_SH = hidden_SH.to(dtype)
        count = len(targets_S)
        if dtype == torch.bfloat16:
            beyond = padded_rows(count) - count
            hidden_SH, targets_S = F.pad(hidden_SH, (0, 0, 0, beyond)), F.pad(targets_S, (0, beyond))
        found = linear_logprobs(hidden_SH, weight, bias, targets_S, sampling.temperature, rows)
        return found[0][:count], found[1][:count]
    rows = max(1, rows // _ARRAYS)
    if len(targets_S) <= rows:
        return _chunk(head, hidden_SH, targets_S, sampling, entropy_gradient)
    parts = [
        checkpoint(
            _chunk,
            head,
            hidden_SH[at : at + rows],
            targets_S[at : at + rows],
            sampling,
            entropy_gradient,
            use_reentrant=False,
        )
        for at in range(0, len(targets_S), rows)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _kernel_serves(head: nn.Module, hidden_SH: Tensor) -> bool:
    floats = {hidden_SH.dtype, head.weight.dtype} <= {torch.float32, torch.bfloat16}
    return type(head) is nn.Linear and floats and fits() and hidden_SH.device.type == "cpu"


def _chunk(
    head: nn.Module, hidden_SH: Tensor, targets_S: Tensor, sampling: Sampling, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logprobs_SV = torch.log_softmax(truncate_logits(head(hidden_SH).float(), sampling, keep_N=targets_S), dim=-1)
    counted_SV = logprobs_SV if entropy_gradient else logprobs_SV.detach()
    # A token that is cut has log-prob -inf and probability 0: its share of the entropy is 0, not NaN.
    entropies_S = -(counted_SV.exp() * counted_SV.clamp(min=-1e9)).sum(-1)
    return logprobs_SV.gather(1, targets_S[:, None])[:, 0], entropies_S
