"""Keys of a TRL configuration that 1.16.0 no longer has, and those that open-r1's scripts add.

Files from before are common: their keys mean what TRL's own release notes say.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from grouprl.tools.imported.table import Entry, Given, Outcome, changed, idles, only, same

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
_OF_OPEN_R1 = (
    "code_language code_eval_test_batch_size code_eval_scoring_mode code_provider parallel_code_exec_per_proc "
    "cosine_min_value_wrong cosine_max_value_wrong cosine_min_value_correct cosine_max_value_correct cosine_max_len "
    "repetition_n_grams repetition_max_penalty max_completion_len soft_punish_cache ioi_provider e2b_router_url "
    "morph_router_url"
)
_OF_TRANSFORMERS_4 = (
    "per_gpu_eval_batch_size use_mps_device fp16_backend fp16_opt_level half_precision_backend "
    "jit_mode_eval use_ipex tpu_num_cores tpu_metrics_debug past_index mp_parameters ray_scope torchdynamo "
    "include_inputs_for_metrics group_by_length save_safetensors fsdp_min_num_params "
    "fsdp_transformer_layer_cls_to_wrap xpu_backend include_tokens_per_second push_to_hub_model_id "
    "push_to_hub_organization push_to_hub_token"
)


def _longest_prompt(_: Given, value: Any) -> Outcome:
    if value is None:
        return Outcome("equal")
    return changed(value, {}, "no limit; TRL cut the beginning of longer prompts")


def _prompt_column(_: Given, value: Any) -> Outcome:
    ours = {"task.arguments.prompt_column": value, "task.arguments.messages": True}
    return Outcome("equal", {} if value is None else ours)


def _template(_: Given, value: Any) -> Outcome:
    if value is None:
        return Outcome("equal")
    return Outcome("unsupported", words="write the template into a file and name it: model.chat_template=FILE")


OLDER: Mapping[str, Entry] = MappingProxyType(
    {
        "max_prompt_length": Entry(None, "prompts have no limit", _longest_prompt),
        **idles("a run never overwrites another: runs/NAME", {"overwrite_output_dir": None}),
        **idles(
            "a setting of TRL's vLLM: pass it to `vllm serve` (docs/scale.md)",
            {"vllm_device": None, "vllm_dtype": None, "vllm_enable_prefix_caching": None},
        ),
        **idles("changes how the computation runs, not its math", {"use_liger_loss": None}),
        **idles("rollouts.sqlite records every completion", {"wandb_log_unique_prompts": None}),
        **idles("environment variables: set them in the shell", {"env": None}),
        "system_prompt": same("task.system_prompt", None),
        "dataset_prompt_column": Entry(None, "task.arguments.prompt_column, as a user message", _prompt_column),
        "chat_template": Entry(None, "model.chat_template, a file", _template),
        "dataset_mixture": only(None, "task.path names one file or data set"),
        **idles("trackers.project names the project", {"wandb_entity": None, "wandb_run_group": None}),
        **idles("run `grouprl push` and `grouprl eval` afterwards", {"callbacks": None, "benchmarks": None}),
        **idles("an argument of open-r1's rewards, which GroupRL lacks", dict.fromkeys(_OF_OPEN_R1.split())),
        "token_entropy_percentile_threshold": only(None, "write top_entropy_quantile = 1 - this value", 0.0),
        "no_cuda": Entry(None, "model.device", lambda _, on: Outcome("equal", {"model.device": "cpu"} if on else {})),
        "adafactor": only(None, "the optimizer is AdamW", False),
        "split_batches": only(None, "a batch is counted per device", False),
        "dispatch_batches": only(None, "each rank reads its own problems", False),
        **idles("a setting of transformers 4; nothing here depends on it", dict.fromkeys(_OF_TRANSFORMERS_4.split())),
    }
)
"""Key -> entry; null = the file does not have it."""
