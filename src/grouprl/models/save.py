"""Saves a model, or its adapter, as a Hugging Face folder that other libraries can load; also of an object."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.models.adapters import has_adapter, is_peft_model, save_adapter
from grouprl.models.load import check_tokens, hide_progress_bars, load_tokenizer
from grouprl.models.shard import own_part, whole
from grouprl.types import UserError

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into a folder.

    A model with an adapter gives only adapter_config.json and adapter_model.safetensors.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        folder: the folder.
        tensors: of a sharded model, its whole weights by name.

    Raises:
        UserError: a weight is not finite; nothing is written.
    """
    if (name := not_finite(model.named_parameters() if tensors is None else tensors.items())) is not None:
        raise UserError(
            f"{folder}: expected finite weights to save, got NaN or infinity in {name}: lower the learning rate, and "
            "start from an earlier checkpoint"
        )
    with hide_progress_bars():
        if has_adapter(model):
            save_adapter(model, folder, tensors)
        else:
            model.save_pretrained(folder, state_dict=tensors)
        tokenizer.save_pretrained(folder)


@torch.no_grad()
def not_finite(weights: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first weight that has a value that is not finite; None when all are finite."""
    return next((name for name, weight in weights if not bool(own_part(weight).isfinite().all())), None)


def plain_tensors(module: nn.Module, *, learned_only: bool = False, keep: bool = True) -> dict[str, Tensor]:
    """Weights by name on the CPU, each with its own memory, which safetensors needs; all, or only the trained ones.

    All ranks gather sharded weights together; those that do not write them `keep` none.
    """
    tensors = trained_tensors(module) if learned_only else module.state_dict()
    return {name: value for name, sharded in tensors.items() if (value := plain(sharded, keep=keep)) is not None}


def save_tensors(path: Path | None, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file one tensor after the other, so that one whole tensor is in memory at a time.

    All ranks gather sharded tensors together; those that write no file give None. The bytes are `save_file`'s.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, at = dict[str, Any](), 0
    for name in names:
        tensor = tensors[name]
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with nullcontext() if path is None else path.open("wb") as file:
        if file is not None:
            file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            value = plain(tensors[name], keep=file is not None)
            if file is not None and value is not None:
                file.write(value.flatten().view(torch.uint8).numpy().data)


def trained_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module by name, without the weights that take no gradient; sharded ones as they are."""
    frozen = {name for name, weight in module.named_parameters() if not weight.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def plain(tensor: Tensor, *, keep: bool) -> Tensor | None:
    """The whole tensor on the CPU, with memory of its own; None on a rank that keeps none."""
    value = whole(tensor.detach())
    return value.cpu().contiguous().clone() if keep else None


def folder_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, parent: Path) -> Path:
    """Writes a model and its tokenizer to a folder, whose name is the digest of its files.

    The same weights, configuration and tokenizer give the same folder, so that a run can be resumed with the same
    objects. The objects themselves do not change.

    Args:
        model: a causal language model of transformers, without an adapter and not quantized; or one of peft, whose
            adapter alone is written, with the name of its base model.
        tokenizer: None = the one of the place that the model was loaded from.
        parent: the folder that the new one is made in.

    Raises:
        UserError: the model cannot be written as it is, or the tokenizer has other tokens than the model.
    """
    base = model.get_base_model() if is_peft_model(model) else model
    if not isinstance(base, PreTrainedModel):
        raise UserError(
            f"model: expected a name, a folder, a hub id or a model of transformers, got {type(model).__name__}: give "
            "one of them"
        )
    if (base is model and has_adapter(model)) or getattr(base, "is_quantized", False):
        kind = "an adapter" if has_adapter(model) else "quantized weights"
        raise UserError(
            f"model: expected a model with plain weights, got one with {kind}: give the model itself, and "
            "model.lora={} in the configuration to train an adapter"
        )
    tokenizer = tokenizer or load_tokenizer(base.name_or_path)
    check_tokens(base, tokenizer)
    parent.mkdir(parents=True, exist_ok=True)
    written = Path(tempfile.mkdtemp(prefix=".writing-", dir=parent))
    try:
        if base is model:
            save_model(model, tokenizer, written)
        else:
            model.save_pretrained(str(written))
            tokenizer.save_pretrained(written)
        digest = hashlib.sha256()
        for path in sorted(written.rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(written)}\0{path.stat().st_size}\0".encode())
                with path.open("rb") as file:
                    while part := file.read(1 << 20):
                        digest.update(part)
        target = parent / digest.hexdigest()[:16]
        if not target.exists():
            written.replace(target)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return target
