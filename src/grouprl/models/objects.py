"""Models that a program holds in memory: written once to a folder, from which every run loads its own copy."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.models.adapters import has_adapter
from grouprl.models.load import check_tokens, load_tokenizer
from grouprl.models.save import save_model
from grouprl.types import UserError


def folder_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, parent: Path) -> Path:
    """Writes a model and its tokenizer to a folder, whose name is the digest of its files.

    The same weights, configuration and tokenizer give the same folder, so that a run can be resumed with the same
    objects. The objects themselves do not change.

    Args:
        model: a causal language model of transformers, without an adapter and not quantized.
        tokenizer: None = the one of the place that the model was loaded from.
        parent: the folder that the new one is made in.

    Raises:
        UserError: the model cannot be written as it is, or the tokenizer has other tokens than the model.
    """
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"model: expected a name, a folder, a hub id or a model of transformers, got {type(model).__name__}: a "
            "model of peft is saved with save_pretrained, and its folder given"
        )
    if has_adapter(model) or getattr(model, "is_quantized", False):
        kind = "an adapter" if has_adapter(model) else "quantized weights"
        raise UserError(
            f"model: expected a model with plain weights, got one with {kind}: give the model itself, and "
            "model.lora={} in the configuration to train an adapter"
        )
    tokenizer = tokenizer or load_tokenizer(model.name_or_path)
    check_tokens(model, tokenizer)
    parent.mkdir(parents=True, exist_ok=True)
    written = Path(tempfile.mkdtemp(prefix=".writing-", dir=parent))
    try:
        save_model(model, tokenizer, written)
        target = parent / _digest(written)
        if not target.exists():
            written.replace(target)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return target


def _digest(folder: Path) -> str:
    """Hash of the names and contents of all files, in 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
    return digest.hexdigest()[:16]
