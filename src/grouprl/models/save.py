"""Saves a model as a Hugging Face folder that everyone else can load."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.models.quiet import quiet


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into a folder."""
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
