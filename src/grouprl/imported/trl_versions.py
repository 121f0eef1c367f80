"""What TRL's defaults were, read from the dataclasses of its releases 0.14.0 to 1.16.0, and which release a file is for.

TRL before 0.15 counted prompts per device, where later releases count completions: see `trl_rules.batches_of`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from grouprl.imported.table import Versions
from grouprl.types import UserError

Version = tuple[int, ...]
OLDEST, NEWEST, COUNTED_PROMPTS = (0, 14), (1, 16), (0, 15)

# Key -> the defaults of older releases, each with the first release that has another.
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
# The first release with a key, and the first without it.
_SINCE: Mapping[Version, str] = {
    (0, 15): "log_completions ref_model_mixup_alpha ref_model_sync_steps sync_ref_model reward_weights vllm_max_model_len "
    "ds3_gather_for_generation vllm_dtype",
    (0, 16): "epsilon epsilon_high min_p num_iterations repetition_penalty scale_rewards top_k top_p use_dora "
    "cache_implementation vllm_guided_decoding_regex vllm_server_host vllm_server_port vllm_server_timeout",
    (0, 17): "loss_type mask_truncated_completions disable_dropout num_completions_to_print shuffle_dataset "
    "use_liger_loss wandb_log_unique_prompts",
    (0, 18): "delta generation_batch_size steps_per_generation reward_funcs vllm_mode vllm_server_base_url "
    "vllm_tensor_parallel_size",
    (0, 19): "generation_kwargs dataset_streaming",
    (0, 20): "importance_sampling_level top_entropy_quantile",
    (0, 23): "dtype vllm_importance_sampling_correction vllm_importance_sampling_cap vllm_enable_sleep_mode",
    (0, 25): "chat_template_kwargs cast_lm_head_to_fp32",
    (0, 26): "use_bias_correction_kl sapo_temperature_neg sapo_temperature_pos vllm_importance_sampling_mode "
    "num_generations_eval vllm_max_model_length log_unique_prompts",
    (0, 27): "multi_objective_aggregation off_policy_mask_threshold vllm_structured_outputs_regex",
    (1, 0): "vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos pad_to_multiple_of",
    (1, 8): "entropy_coef entropy_target use_adaptive_entropy router_aux_loss_coef vllm_importance_sampling_clip_max "
    "vllm_importance_sampling_clip_min",
}
_UNTIL: Mapping[Version, str] = {
    (0, 18): "vllm_device vllm_dtype vllm_enable_prefix_caching",
    (0, 27): "torch_dtype wandb_log_unique_prompts",
    (0, 28): "max_prompt_length use_liger_loss vllm_guided_decoding_regex",
}


def versions_of(keys: Collection[str], named: str | None) -> Versions:
    """The oldest and the newest release that a file with these keys can be for, or the one that is named.

    Raises:
        UserError: the name is none of a release between 0.14 and 1.16.
    """
    if named is not None:
        found = tuple(map(int, named.split(".")[:2])) if re.fullmatch(r"\d{1,3}(\.\d{1,3}){1,2}", named) else ()
        if not OLDEST <= found <= NEWEST:
            raise UserError(f"--trl: expected a release from 0.14 to 1.16, got {named}: name the file's")
        return found, found
    oldest = max((since for since, those in _SINCE.items() if {*those.split()} & {*keys}), default=OLDEST)
    ends = min((until for until, those in _UNTIL.items() if {*those.split()} & {*keys}), default=NEWEST)
    newest = max((one for one in (*_SINCE, *_UNTIL, OLDEST) if one < ends), default=OLDEST) if ends < NEWEST else NEWEST
    return (oldest, newest) if oldest <= newest else (OLDEST, NEWEST)


def default_in(version: Version, key: str, newest: Any) -> Any:
    """The default of a key in a release, where `newest` is that of the newest."""
    return next((value for other, value in _WAS.get(key, ()) if version < other), newest)


def shown_version(version: Version) -> str:
    """A release as text, such as 0.14."""
    return ".".join(map(str, version))
