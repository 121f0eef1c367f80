"""Publishes the policy's weights once a step, for samplers in other processes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.engines.published import VERSION, PublishedWeights, digest_of
from grouprl.models.manifest import write_manifest
from grouprl.models.save import plain_tensors, save_model
from grouprl.record.files import atomic_directory, remove_directory

_NAME = re.compile(r"version-([0-9]{6,})")


def publish(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    version: int,
    tensors: Mapping[str, Tensor] | None = None,
) -> PublishedWeights:
    """Writes a version into `folder`, and removes all versions but it and the one before.

    Readers see all of a version or none of it. A version that exists is written again: its run may have gone back.

    Args:
        model: the policy; one with an adapter gives the adapter alone.
        tokenizer: its tokenizer.
        folder: for versions of this run alone; made when it is missing.
        version: updates made before.
        tensors: of a sharded model, its whole weights by name.

    Raises:
        UserError: a weight is not finite; nothing is written.
    """
    target = folder.resolve() / f"version-{version:06d}"
    with atomic_directory(target) as new:
        save_model(model, tokenizer, new, tensors=tensors)
        _seal(new, version)
    path_by_version = {int(name[1]): path for path in target.parent.iterdir() if (name := _NAME.fullmatch(path.name))}
    before = path_by_version.get(
        max((earlier for earlier in path_by_version if earlier < version), default=version), target
    )
    for path in target.parent.iterdir():
        if path.name.startswith("version-") and path not in (target, before):
            remove_directory(path)
    return PublishedWeights(target, version, digest_of(target))


def publish_base(model: PreTrainedModel, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> PublishedWeights:
    """Writes the weights below an adapter, which do not change, as version 0 into `folder`/base."""
    target = folder.resolve() / "base"
    with atomic_directory(target) as new:
        weights = plain_tensors(model) if tensors is None else tensors
        base = {name.replace(".base_layer.", "."): weight for name, weight in weights.items() if ".lora_" not in name}
        save_file(base, new / "model.safetensors")
        _seal(new, 0)
    return PublishedWeights(target, 0, digest_of(target))


def _seal(folder: Path, version: int) -> None:
    (folder / VERSION).write_text(json.dumps({"version": version}) + "\n", encoding="utf-8")
    write_manifest(folder)
