"""Slow, plain references that several tests hold the code to."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from grouprl.types import Sampling


def own_model(folder: Path) -> PreTrainedModel:
    """The checkpoint in transformers' own hands: its attention, its positions, nothing packed."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def own_logits(model: PreTrainedModel, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Tensor:
    """[T, V] logits that predict each token of one completion, from one forward over prompt and completion."""
    ids = torch.tensor([[*prompt_ids, *token_ids]])
    return model(ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1]


def slow_policy(
    logits: Sequence[float], sampling: Sampling, keep: int | None = None, before: Sequence[int] = ()
) -> list[float]:
    """Probabilities of one row, token by token in plain Python, after the tokens `before`."""
    penalty = sampling.repetition_penalty
    logits = list(logits)
    for token in set(before):
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    scaled = [logit / sampling.temperature for logit in logits]
    powers = [math.exp(value - max(scaled)) for value in scaled]
    kept = set(range(len(powers)))
    if sampling.top_k:
        threshold = sorted(powers, reverse=True)[: sampling.top_k][-1]
        kept = {token for token in kept if powers[token] >= threshold}
    total, mass, nucleus = sum(powers[token] for token in kept), 0.0, set()
    for token in sorted(kept, key=lambda token: -powers[token]):
        if mass < sampling.top_p or sampling.top_p == 1.0:
            nucleus.add(token)
        mass += powers[token] / total
    kept = {token for token in nucleus if powers[token] >= sampling.min_p * max(powers)}
    kept |= set() if keep is None else {keep}
    total = sum(powers[token] for token in kept)
    return [powers[token] / total if token in kept else 0.0 for token in range(len(powers))]
