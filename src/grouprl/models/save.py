"""Saves a model as a Hugging Face folder that everyone else can load."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase


def save_model(model: nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into a folder."""
    model.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
