"""Evaluates reference, critic and policy on a batch before its first update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.learner.forward import pack_forward, pack_hidden
from grouprl.learner.packs import Pack, make_packs, targets, to_grid
from grouprl.models.adapters import as_reference
from grouprl.models.critic import Critic
from grouprl.models.precision import autocast
from grouprl.types import Batch


@dataclass(frozen=True)
class PolicyEvaluation:
    """[N, T] float32 tensors on the learner's device, 0 outside the completions; None = the algorithm needs none."""

    reference_NT: Tensor | None = None  # log-probs of the reference
    values_NT: Tensor | None = None  # the critic's values before each token
    policy_NT: Tensor | None = None  # log-probs of the learner's policy, if the algorithm needs them
    entropies_NT: Tensor | None = None  # entropies of the learner's policy, in nats


@torch.no_grad()
def evaluate_policy(
    batch: Batch,
    *,
    policy: PreTrainedModel,
    reference: PreTrainedModel | None,
    critic: Critic | None,
    policy_too: bool,
    device: torch.device,
    dtype: str,
    micro_batch_tokens: int,
) -> PolicyEvaluation:
    """Makes one forward pass of every network that the algorithm needs.

    Args:
        batch: the batch of the step.
        policy: the policy, which runs for `policy_too` and for a critic that shares its trunk.
        reference: None = not needed; the policy itself = the policy without its adapter.
        critic: None = not needed.
        policy_too: whether the policy's log-probs and entropies are needed before the update.
        device, dtype, micro_batch_tokens: device, dtype and pack size of the forward passes.
    """
    shared = critic is not None and critic.trunk is None
    if reference is None and critic is None and not policy_too:
        return PolicyEvaluation()
    packs = make_packs(batch, range(len(batch.group_of_N)), micro_batch_tokens, device)
    found: dict[str, list[Tensor]] = {}
    for pack in packs:
        columns, ids_C = {}, targets(batch, pack)
        with autocast(device, dtype):
            if reference is not None:
                with as_reference(reference, policy) as frozen:
                    columns["reference_NT"] = pack_forward(frozen, pack, ids_C, batch.sampling).logprobs_C
            if policy_too or shared:
                own = pack_forward(policy, pack, ids_C, batch.sampling)
                columns |= {"policy_NT": own.logprobs_C, "entropies_NT": own.entropies_C} if policy_too else {}
            if critic is not None:
                hidden_CH = own.hidden_CH if critic.trunk is None else pack_hidden(critic.trunk, pack)
                columns["values_NT"] = critic.values(hidden_CH)
        for name, values_C in columns.items():
            found.setdefault(name, []).append(to_grid(pack, values_C))
    return PolicyEvaluation(**{name: _whole(batch, packs, grids) for name, grids in found.items()})


def _whole(batch: Batch, packs: Sequence[Pack], grids: Sequence[Tensor]) -> Tensor:
    whole_NT = torch.zeros(batch.mask_NT.shape, device=grids[0].device)
    for pack, grid_nT in zip(packs, grids, strict=True):
        whole_NT[list(pack.rows), : pack.width] = grid_nT
    return whole_NT
