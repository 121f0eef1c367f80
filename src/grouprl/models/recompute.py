"""Activation checkpointing: the activations inside a layer are made again in the backward pass instead of being kept.

Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel


def recompute_activations(model: PreTrainedModel) -> None:
    """From now on a backward pass keeps the inputs of each layer alone, and runs the layer's forward pass again."""
    for layer in model.get_decoder().layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        # transformers checkpoints layers in training mode alone; what is inside stays in eval mode, without dropout.
        layer.training = True


def recomputes(layer: nn.Module) -> bool:
    """Whether `recompute_activations` was asked for."""
    found: Any = getattr(layer, "gradient_checkpointing", False)
    return bool(found) and layer.training
