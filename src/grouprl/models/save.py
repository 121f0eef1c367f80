"""Saves a model as a Hugging Face folder that everyone else can load."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.models.quiet import quiet


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into a folder."""
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Weights by name on the CPU, each with memory of its own, as safetensors wants them."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
