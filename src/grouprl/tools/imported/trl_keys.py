"""Every key of a TRL configuration, its names and defaults in the releases 0.14 to 1.16.

TRL before 0.15 counted prompts per device, where later releases count completions: see `trl_rules.batches_of`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from grouprl.tools.imported import trl_parts, trl_rules
from grouprl.tools.imported.table import Entry, Versions, read_table
from grouprl.types import UserError

Version = tuple[int, ...]
OLDEST, NEWEST = (0, 14), (1, 16)

TRL: Mapping[str, Entry] = MappingProxyType(read_table("trl.yaml", vars(trl_rules) | vars(trl_parts)))
"""Key -> entry. A key that is missing is unsupported."""

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "torch_dtype": "dtype",
        "evaluation_strategy": "eval_strategy",
        "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
        "vllm_max_model_len": "vllm_max_model_length",
        "hub_model_revision": "hub_revision",
        "wandb_project": "project",
        "per_gpu_train_batch_size": "per_device_train_batch_size",
    }
)
"""The older name of a key, or open-r1's, -> the name that TRL has now."""

# Key -> the defaults of older releases, each with the first release that has another, from their dataclasses.
_WAS: Mapping[str, tuple[tuple[Version, Any], ...]] = {
    "per_device_train_batch_size": (((0, 15), 1),),
    "gradient_accumulation_steps": (((0, 15), 8),),
    "loss_type": (((0, 16), "grpo"), ((0, 22), "bnpo")),
    "ref_model_mixup_alpha": (((0, 16), 0.9),),
    "ref_model_sync_steps": (((0, 16), 64),),
    "temperature": (((0, 18), 0.9),),
    "top_k": (((0, 18), 50),),
    "beta": (((0, 19), 0.04),),
    "bf16": (((0, 19), False),),
    "logging_steps": (((0, 19), 500),),
    "gradient_checkpointing": (((0, 22), False),),
    "vllm_importance_sampling_correction": (((0, 23), False),),
    "vllm_importance_sampling_mode": (((0, 26), "token_truncate"),),
    "vllm_importance_sampling_clip_max": (((0, 26), 2.0),),
    "max_prompt_length": (((0, 26), 512),),
    "vllm_mode": (((1, 0), "server"),),
    "max_completion_length": (((1, 10), 256),),
    "use_bias_correction_kl": (((1, 10), False),),
}


def versions_of(named: str | None) -> Versions:
    """The release that is named, as the oldest and the newest that a file can be for; None = all of them.

    Raises:
        UserError: the name is none of a release between 0.14 and 1.16.
    """
    if named is None:
        return OLDEST, NEWEST
    found = tuple(map(int, named.split(".")[:2])) if re.fullmatch(r"\d{1,3}(\.\d{1,3}){1,2}", named) else ()
    if not OLDEST <= found <= NEWEST:
        raise UserError(f"--trl: expected a release from 0.14 to 1.16, got {named}: name the file's")
    return found, found


def default_in(version: Version, key: str, newest: Any) -> Any:
    """The default of a key in a release, where `newest` is that of the newest."""
    return next((value for other, value in _WAS.get(key, ()) if version < other), newest)


def shown_version(version: Version) -> str:
    """A release as text, such as 0.14."""
    return ".".join(map(str, version))
