"""GRPO's gradient one completion and one token at a time, on the library's own forward pass."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms.spec import Algorithm
from grouprl.types import Batch, Sampling
from learner_setting import ADVANTAGES, other_reference
from oracles import own_logits, own_model, slow_policy
from variants import variant


def moved(batch: Batch) -> Batch:
    """As if the policy had moved since it sampled: ratios between 0.6 and 1.6."""
    shift = 0.5 * torch.sin(torch.arange(batch.mask_NT.numel()) * 1.7).view(batch.mask_NT.shape)
    return replace(batch, old_logprobs_NT=batch.old_logprobs_NT + shift * batch.mask_NT)


def own_policy(logits_TV: Tensor, token_ids: Sequence[int], sampling: Sampling) -> Tensor:
    """[T] log-probs under the policy that drew the tokens; which tokens are cut is decided in plain Python."""
    kept = [slow_policy(row, sampling, token) for row, token in zip(logits_TV.tolist(), token_ids, strict=True)]
    scaled = (logits_TV / sampling.temperature).masked_fill(torch.tensor(kept) == 0, -torch.inf)
    return scaled.log_softmax(-1)[torch.arange(len(token_ids)), list(token_ids)]


@torch.no_grad()
def padded_logprobs(model: PreTrainedModel, folder: Path, batch: Batch) -> Tensor:
    """[N, T] log-probs of the model's weights on the library's own forward, one completion at a time."""
    own = own_model(folder)
    own.load_state_dict(model.state_dict())
    grid = torch.zeros(batch.mask_NT.shape)
    for row, length in enumerate(batch.mask_NT.sum(1).tolist()):
        ids = batch.token_ids_NT[row, :length].tolist()
        logits = own_logits(own, batch.prompts[batch.group_of_N[row]], ids)
        grid[row, :length] = own_policy(logits, ids, batch.sampling)
    return grid


def plain_loss(
    own: PreTrainedModel, reference: PreTrainedModel, batch: Batch, kl_coef: float, token_mean: bool
) -> Tensor:
    """GRPO one completion at a time and one token at a time, on the library's own forward."""
    total = torch.zeros((), dtype=torch.float64)
    lengths = batch.mask_NT.sum(1).tolist()
    for row, length in enumerate(lengths):
        prompt = batch.prompts[batch.group_of_N[row]]
        ids = batch.token_ids_NT[row, :length].tolist()
        policy = own_policy(own_logits(own, prompt, ids), ids, batch.sampling)
        with torch.no_grad():
            anchor = own_policy(own_logits(reference, prompt, ids), ids, batch.sampling)
        weight = 1 / sum(lengths) if token_mean else 1 / (len(lengths) * length)
        advantage = float(ADVANTAGES[row])
        for at in range(length):
            ratio = (policy[at] - batch.old_logprobs_NT[row, at]).exp()
            bounded = min(max(ratio.item(), 0.8), 1.2)
            clipped = bounded * advantage < ratio.item() * advantage
            away = (anchor[at] - policy[at]).exp()
            kl = away - 1 - away.log()
            total = total + weight * (kl_coef * kl - (0.0 if clipped else ratio * advantage))
    return total


def plain_gradient(folder: Path, model: PreTrainedModel, batch: Batch, algorithm: Algorithm) -> dict[str, Tensor]:
    own, reference = own_model(folder).double(), own_model(folder).double()
    reference.load_state_dict(other_reference(model).state_dict())
    plain_loss(own, reference, batch, algorithm.kl_coef, algorithm.objective.aggregate == "token_mean").backward()
    return {name: weight.grad for name, weight in own.named_parameters()}


# Two passes, because the ratio of a single update is to the learner itself; these optimizers leave the weights.
ALGORITHMS = [
    variant(kl_coef=0.3, passes=2),
    variant(kl_coef=0.0, passes=2),
    variant(kl_coef=0.3, passes=2, aggregate="token_mean"),
]


def named(algorithm: Algorithm) -> str:
    return f"kl_coef={algorithm.kl_coef} {algorithm.objective.aggregate} {algorithm.objective.ratio}"
