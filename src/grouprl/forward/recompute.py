"""Activation checkpointing: the backward pass computes the activations inside a layer again instead of keeping them.

Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decoder_layers(model: PreTrainedModel) -> list[Any]:
    """The layers of a model's decoder, whatever it calls their list."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # the planner needs only `recomputes`

    modules = model.get_decoder().modules()
    return [module for module in modules if isinstance(module, GradientCheckpointingLayer)]


def recomputes(setting: bool | None, device_type: str) -> bool:
    """What `learner.recompute` means: None is yes on a GPU, whose memory is the bound."""
    return device_type != "cpu" if setting is None else setting


def recompute_activations(model: PreTrainedModel) -> None:
    """Makes the model keep only the inputs of each layer, and run its forward pass again in the backward pass."""
    for layer in decoder_layers(model):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        # transformers checkpoints only layers in training mode; the modules inside stay in eval mode, without dropout.
        layer.training = True
