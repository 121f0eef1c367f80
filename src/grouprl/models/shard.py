"""Shards a model's weights over ranks with FSDP2: each rank keeps a part, and gathers a layer where it computes it.

Sharded weights are DTensors. What reads weights without a call of their module needs them `gathered`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from grouprl.forward.recompute import decoder_layers


def shard_model(model: PreTrainedModel, mesh: DeviceMesh, dtype: str) -> None:
    """Shards the layers of a decoder and its embeddings, in place; with two axes the first one replicates (HSDP).

    Args:
        model: a whole model, the same on every rank; a decoder alone has no output embedding.
        mesh: the ranks.
        dtype: of the computation. In bfloat16 layers are gathered in bfloat16; the shards and the sums of gradients
            stay float32, and so do embeddings, norms and the sums between the layers, as under autocast.
    """
    decoder: Any = model.get_decoder()
    head = None if decoder is model else model.get_output_embeddings()
    embedding = decoder.get_input_embeddings()
    narrow = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if dtype == "bfloat16" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    if head is not None and head.weight is embedding.weight:
        model.set_output_embeddings(_TiedHead(embedding))
    elif head is not None:
        _shard(head, mesh, narrow, reshard_after_forward=False)
    for layer in decoder_layers(model):
        _shard(layer, mesh, narrow, reshard_after_forward=True)
    _shard(decoder, mesh, MixedPrecisionPolicy(cast_forward_inputs=False), reshard_after_forward=False)


def shard_module(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shards the weights of a module that is called as a whole, in place."""
    _shard(module, mesh, MixedPrecisionPolicy(cast_forward_inputs=False), reshard_after_forward=False)


def _shard(module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy, *, reshard_after_forward: bool) -> None:
    sharded = fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    # The denominators of a loss hold for the whole batch: gradients are added, not averaged.
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no factor inside a sum


class _TiedHead(nn.Module):
    """An output embedding whose weights are the input embedding's, also while those are gathered."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self._embedding = [embedding]  # a list: a second name of the weights would shard them twice
        self.bias = None

    @property
    def weight(self) -> Tensor:
        """[V, H]."""
        weight: Tensor = self._embedding[0].weight  # type: ignore[assignment]
        return weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H]."""
        return F.linear(hidden, self.weight)


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard_model` or `shard_module` has sharded the weights."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


@contextmanager
def gathered(model: PreTrainedModel) -> Iterator[None]:
    """Keeps all weights whole on every rank while the block runs: they are gathered once, not once a token."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    layers = decoder_layers(model)
    for part in parts:
        part.unshard()
    for layer in layers:
        layer.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True, recurse=False)
        for part in parts:
            part.reshard()


def reshard(model: nn.Module) -> None:
    """Frees the gathered weights that a pass without a backward pass leaves: those outside the layers."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; all ranks call it together. Another tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; another tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, the same on every rank, sharded as another one of its shape."""
    if not isinstance(other, DTensor) or tensor.shape != other.shape:
        return tensor.to(other.device)
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


@torch.no_grad()
def load_whole(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Loads whole tensors by name into a module, sharded or not; weights that are not named stay."""
    state = module.state_dict()
    module.load_state_dict(state | {name: part_like(tensor, state[name]) for name, tensor in tensors.items()})
