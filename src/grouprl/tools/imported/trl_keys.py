"""Every key of a TRL configuration with its default in release 1.16, and the older names of keys."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from grouprl.tools.imported import trl_parts, trl_rules
from grouprl.tools.imported.table import Entry, read_table

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
