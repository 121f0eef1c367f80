"""Published weights: a version of the policy as a folder that other processes check and then sample from.

Samplers on other machines and vLLM's workers read it, so this module imports neither transformers nor the package's
configuration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from grouprl.models.manifest import MANIFEST, check_manifest
from grouprl.types import UserError

VERSION = "version.json"
_ADAPTER = "adapter_model.safetensors"
# What two models must have in common for the weights of one to be the weights of the other.
_SHAPE = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "tie_word_embeddings", "rms_norm_eps", "sliding_window"),
)


@dataclass(frozen=True)
class PublishedWeights:
    """A folder in Hugging Face layout with `version.json` and a manifest: a whole model, or an adapter alone."""

    folder: Path
    version: int  # updates made before
    digest: str  # SHA-256 of the manifest, which holds the SHA-256 of every file

    @property
    def label(self) -> str:
        """Names the version and its bytes: after a run went back, the same version can have other weights."""
        return f"{self.version}-{self.digest[:16]}"

    @property
    def is_adapter(self) -> bool:
        """Whether it holds an adapter, without the base model's weights."""
        return (self.folder / _ADAPTER).is_file()

    def check(self) -> None:
        """Checks version and digest of every file; call it before the weights are used.

        Raises:
            UserError: the folder is missing, or holds another version or other bytes.
        """
        try:
            digest = digest_of(self.folder)
            version = json.loads((self.folder / VERSION).read_bytes())["version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._other(f"none that can be read ({type(error).__name__})") from None
        if (version, digest) != (self.version, self.digest):
            raise self._other(f"{version}-{digest[:16]}")
        check_manifest(self.folder)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yields name and value of each tensor, one file at a time."""
        for path in sorted(self.folder.glob("*.safetensors")):
            with ExitStack() as stack:
                opened = stack.enter_context(safe_open(path, framework="pt"))
                for name in opened.keys():  # noqa: SIM118  it is no mapping
                    yield name, opened.get_tensor(name)

    def _other(self, got: str) -> UserError:
        return UserError(
            f"{self.folder}: expected published weights {self.label}, got {got}: check that the sampler sees the run's "
            "folder, and that nothing else writes there"
        )


def digest_of(folder: Path) -> str:
    """The digest of a published folder: the SHA-256 of its manifest."""
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


def shape_of(config: Any) -> dict[str, Any]:
    """The settings of a model's configuration on which names, shapes and meaning of its weights depend."""
    return {name: getattr(config, name, None) for name in _SHAPE}


def shape_difference(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    """Names the first setting in which two models differ, with both values; '' when there is none."""
    for name, value in expected.items():
        if value is not None and got.get(name) is not None and value != got[name]:
            return f"{name}={got[name]} instead of {value}"
    return ""
