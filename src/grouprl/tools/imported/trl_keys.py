"""Every key of a TRL configuration (1.16.0): GRPOConfig, ModelConfig, ScriptArguments, and what each is here.

The defaults are those of trl/trainer/grpo_config.py and of transformers' TrainingArguments (5.17).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from grouprl.tools.imported import trl_parts as parts
from grouprl.tools.imported import trl_rules as rules
from grouprl.tools.imported.table import Entry, Outcome, also_learned, choice, idle, idles, in_random_order, only, same
from grouprl.tools.imported.trl_older import OLDER

_NO_TENSORS = "TRL's layout of batches and devices; packs, ranks and `torchrun` need no setting"
_LOGS = "metrics.jsonl records every step"
_SHOWN = "rollouts.sqlite records every completion"
_NO_VLLM = "a setting of TRL's vLLM: pass it to `vllm serve` (docs/vllm.md)"
_NO_UPLOAD = "a run uploads nothing: `grouprl push RUN OWNER/NAME` afterwards"
_EVALUATION = "the evaluation has settings of its own: `grouprl settings evaluation`"
_EXACT = "changes how the computation runs, not its math"

_ALGORITHM = {
    "num_generations": same("rollout.group_size", 8),
    "num_iterations": same("algorithm.passes", 1),
    "epsilon": Entry(0.2, "algorithm.clip_low", rules.epsilon),
    "epsilon_high": Entry(None, "algorithm.clip_high; of cispo, clip_high + 1", rules.epsilon_high),
    "delta": Entry(None, "algorithm.dual_clip", rules.delta),
    "beta": Entry(0.0, "algorithm.kl_coef", rules.beta),
    "use_bias_correction_kl": Entry(True, "algorithm.kl_unbiased", rules.kl_unbiased),
    "importance_sampling_level": choice(
        "token",
        "algorithm.ratio",
        {"token": {"algorithm.ratio": "token"}, "sequence": {"algorithm.ratio": "sequence"}},
    ),
    "scale_rewards": Entry("group", "algorithm.scale", rules.scale_rewards),
    "multi_objective_aggregation": Entry("sum_then_normalize", "algorithm.reward_mix", rules.reward_mix),
    "loss_type": Entry("dapo", "algorithm.aggregate and algorithm.surrogate", rules.loss_type),
    "mask_truncated_completions": Entry(False, "algorithm.mask_overlong", rules.masked),
    "top_entropy_quantile": Entry(1.0, "algorithm.entropy_share", rules.entropy_share),
    "entropy_coef": Entry(0.0, "algorithm.entropy_coef", rules.entropy_coef),
    "use_adaptive_entropy": Entry(False, "algorithm.entropy_target and entropy_step", rules.adaptive_entropy),
    "sync_ref_model": Entry(
        False, "algorithm.refresh_reference", lambda _, value: Outcome("equal", words="see ref_model_sync_steps")
    ),
    "ref_model_sync_steps": Entry(512, "algorithm.refresh_reference", rules.sync_reference),
    "ref_model_mixup_alpha": Entry(0.6, "algorithm.reference_mixup", rules.reference_mixup),
    "off_policy_mask_threshold": same("algorithm.off_policy_delta", None),
    "sapo_temperature_neg": Entry(1.05, "algorithm.tau_neg", rules.temperature_of_sapo("algorithm.tau_neg")),
    "sapo_temperature_pos": Entry(1.0, "algorithm.tau_pos", rules.temperature_of_sapo("algorithm.tau_pos")),
    "router_aux_loss_coef": same("algorithm.router_aux_coef", None),
    **idles(
        "belongs to loss_type vespo, which is unsupported",
        {
            "vespo_k_pos": 2.0,
            "vespo_k_neg": 3.0,
            "vespo_lambda_pos": 3.0,
            "vespo_lambda_neg": 2.0,
        },
    ),
    **idles(
        "see use_adaptive_entropy",
        {
            "entropy_coef_min": 0.0,
            "entropy_coef_max": 1.0,
            "entropy_coef_delta": 0.005,
            "entropy_target": 0.2,
        },
    ),
}

_SAMPLING = {
    "max_completion_length": same("rollout.max_tokens", 512),
    "temperature": same("rollout.temperature", 1.0),
    "top_p": same("rollout.top_p", 1.0),
    "top_k": Entry(0, "rollout.top_k", rules.top_k),
    "min_p": same("rollout.min_p", None),
    "repetition_penalty": also_learned("rollout.repetition_penalty", 1.0),
    "generation_kwargs": Entry(None, "rollout.stop, from stop_strings", rules.generation_arguments),
    "chat_template_kwargs": same("model.chat_template_kwargs", None),
    "max_tool_calling_iterations": only(None, "a recipe has no tools"),
    "use_vllm": Entry(False, "rollout.engine.name", parts.vllm),
    "vllm_importance_sampling_mode": Entry("sequence_mask", "algorithm.correction_kind and _level", parts.correction),
    **idles(
        "see vllm_importance_sampling_mode",
        {
            "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_clip_max": 3.0,
            "vllm_importance_sampling_clip_min": None,
        },
    ),
    "vllm_importance_sampling_cap": only(None, "TRL's old name for vllm_importance_sampling_clip_max"),
    **idles(
        "rollout.engine.address",
        {
            "vllm_mode": "colocate",
            "vllm_server_base_url": None,
            "vllm_server_host": "0.0.0.0",
            "vllm_server_port": 8000,
        },
    ),
    "vllm_structured_outputs_regex": also_learned("rollout.regex", None),
    **idles(
        _NO_VLLM,
        {
            "vllm_model_impl": "vllm",
            "vllm_enable_sleep_mode": False,
            "vllm_server_timeout": 240.0,
            "vllm_group_port": 51216,
            "vllm_gpu_memory_utilization": 0.3,
            "vllm_max_model_length": None,
            "vllm_tensor_parallel_size": 1,
        },
    ),
    **idles(
        "a setting of transformers' generate, which GroupRL does not use",
        {
            "cache_implementation": None,
            "use_transformers_continuous_batching": False,
            "use_cache": False,
            "transformers_continuous_batching_config": None,
            "use_transformers_paged": False,
            "ds3_gather_for_generation": True,
            "pad_to_multiple_of": "auto",
        },
    ),
}

_BATCHES = {
    "per_device_train_batch_size": Entry(8, "rollout.problems_per_step; TRL counts completions", rules.per_device),
    "gradient_accumulation_steps": Entry(
        1, "rollout.problems_per_step and algorithm.minibatches", rules.several_updates
    ),
    "steps_per_generation": idle(None, "see gradient_accumulation_steps"),
    "generation_batch_size": idle(None, "rollout.problems_per_step; see gradient_accumulation_steps"),
    "max_steps": Entry(-1, "steps, in batches; TRL counts updates", rules.max_steps),
    "num_train_epochs": Entry(3.0, "epochs", rules.epochs),
    "save_steps": Entry(500, "checkpoint.every", rules.save_steps),
    "save_strategy": idle("steps", "see save_steps"),
    "save_total_limit": same("checkpoint.keep", None),
    "eval_steps": Entry(None, "evaluation.every", rules.eval_steps),
    "logging_steps": idle(10, _LOGS),
    "eval_strategy": idle("no", "evaluation.every; see eval_steps"),
    "seed": same("seed", 42),
    "data_seed": idle(None, "seed sets the order of problems"),
    "shuffle_dataset": in_random_order(),
    "dataloader_drop_last": idle(False, "every step has whole groups"),
    "auto_find_batch_size": only(False, "the recipe sets the batch size"),
}

_OPTIMIZER = {
    "learning_rate": same("learner.learning_rate", 1e-6),
    "lr_scheduler_type": Entry("linear", "learner.schedule", rules.schedule),
    "lr_scheduler_kwargs": idle(None, "learner.min_lr_ratio"),
    "warmup_steps": Entry(0, "learner.warmup_steps", rules.warmup),
    "warmup_ratio": Entry(None, "learner.warmup_steps", rules.warmup_ratio),
    "weight_decay": same("learner.weight_decay", 0.0),
    "adam_beta1": same("learner.betas.0", 0.9),
    "adam_beta2": same("learner.betas.1", 0.999),
    "adam_epsilon": only(1e-8, "AdamW's epsilon is 1e-8"),
    "max_grad_norm": Entry(1.0, "learner.max_grad_norm", rules.grad_norm),
    "optim": choice("adamw_torch_fused", "learner.moments and learner.paged", parts.OPTIMIZERS),
    "optim_args": only(None, "the optimizer is AdamW"),
    "optim_target_modules": only(None, "the optimizer is AdamW"),
    "neftune_noise_alpha": only(None, "GroupRL adds no noise to embeddings"),
    "label_smoothing_factor": only(0.0, "the loss has no labels"),
}

_MODEL = {
    "model_name_or_path": same("model.path", None),
    "model_revision": Entry(
        "main",
        "model.revision",
        lambda _, value: Outcome("equal", {} if value == "main" else {"model.revision": value}),
    ),
    "model_init_kwargs": Entry(None, "model.weights and model.revision", parts.model_arguments),
    "dtype": Entry("float32", "model.weights", parts.weights),
    "bf16": Entry(None, "model.dtype", parts.bfloat16),
    "fp16": only(False, "model.dtype=bfloat16, or float32"),
    "gradient_checkpointing": same("learner.recompute", True),
    "activation_checkpointing": same("learner.recompute", None),
    "disable_dropout": idle(False, "dropout is always off, so sampler and learner agree"),
    "trust_remote_code": only(False, "GroupRL runs no code from a checkpoint"),
    "use_peft": Entry(
        False, "model.lora", lambda _, on: Outcome("equal", words="see lora_r") if on else Outcome("equal")
    ),
    "lora_r": Entry(16, "model.lora.rank", partial(parts.lora, "rank")),
    "lora_alpha": Entry(32, "model.lora.alpha", partial(parts.lora, "alpha")),
    "lora_dropout": Entry(0.05, "dropout is off, so sampler and learner agree", partial(parts.lora, "dropout")),
    "lora_target_modules": Entry(None, "model.lora.targets", partial(parts.lora, "targets")),
    "lora_task_type": only("CAUSAL_LM", "the policy is a causal model"),
    **{
        key: only(default, "the adapter is plain LoRA on linear layers")
        for key, default in {
            "lora_target_parameters": None,
            "lora_modules_to_save": None,
            "use_rslora": False,
            "use_dora": False,
            "load_in_8bit": False,
        }.items()
    },
    "load_in_4bit": Entry(False, "model.weights=nf4", parts.four_bits),
    **idles(
        "see load_in_4bit; model.weights=nf4 has one fixed form",
        {
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": False,
            "bnb_4bit_quant_storage": None,
        },
    ),
}

_DATA = {
    "dataset_name": Entry(None, "task.path with task.name=jsonl", parts.dataset),
    "dataset_config": Entry(None, "task.path=hub:OWNER/NAME:CONFIGURATION", parts.of_dataset),
    "dataset_train_split": only("train", "the split is train"),
    "dataset_test_split": only("test", "the split is test"),
    "dataset_streaming": Entry(False, "a run reads the whole file", parts.of_dataset),
    "datasets": only(None, "task.path names one file or data set", []),
    "streaming": Entry(False, "a run reads the whole file", parts.of_dataset),
    "test_split_size": Entry(None, "10 % of the rows, or task.arguments.test_path", parts.test_share),
    "reward_funcs": Entry(None, "rewards", parts.rewards),
    "reward_weights": Entry(None, "rewards.0.weight and so on", parts.reward_weights),
    "reward_model_name_or_path": only(None, "a trained reward model: rewards.0.path=FOLDER (docs/preferences.md)"),
}

_OUTPUT = {
    "run_name": Entry(None, "name", parts.run_name),
    "output_dir": idle(None, "name; the folder is runs/NAME"),
    "report_to": Entry("none", "trackers.names (docs/trackers.md)", parts.trackers),
    "project": Entry(
        "huggingface",
        "trackers.project",
        lambda given, value: (
            Outcome("equal", {"trackers.project": value})
            if "project" in given.named
            else Outcome("not needed", words="trackers.project")
        ),
    ),
    "resume_from_checkpoint": idle(None, "`grouprl train --resume`"),
    "use_cpu": Entry(False, "model.device", lambda _, on: Outcome("equal", {"model.device": "cpu"} if on else {})),
}


def _each(words: str, names: str) -> dict[str, Entry]:
    return idles(words, dict.fromkeys(names.split()))


_NOT_NEEDED = {
    **_each(
        _LOGS,
        "logging_strategy logging_first_step logging_dir log_on_each_node logging_nan_inf_filter "
        "log_level log_level_replica disable_tqdm include_num_input_tokens_seen skip_memory_metrics trackio_space_id "
        "trackio_bucket_id trackio_static_space_id",
    ),
    **_each(
        _SHOWN,
        "log_completions log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo",
    ),
    **_each(
        _NO_UPLOAD,
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
    ),
    **_each(
        _EVALUATION,
        "eval_delay per_device_eval_batch_size num_generations_eval prediction_loss_only eval_on_start "
        "eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics "
        "bf16_full_eval fp16_full_eval load_best_model_at_end metric_for_best_model greater_is_better",
    ),
    **_each(
        _NO_TENSORS,
        "average_tokens_across_devices save_on_each_node save_only_model enable_jit_checkpoint ignore_data_skip "
        "restore_callback_states_from_checkpoint accelerator_config parallelism_config dataloader_num_workers "
        "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor dataloader_in_order "
        "dataloader_multiprocessing_context remove_unused_columns label_names train_sampling_strategy "
        "length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph "
        "ddp_backend ddp_timeout fsdp fsdp_config deepspeed local_rank ignore_bias_buffers do_train do_eval do_predict "
        "debug",
    ),
    **_each(
        _EXACT,
        "tf32 attn_implementation cast_lm_head_to_fp32 full_determinism gradient_checkpointing_kwargs "
        "activation_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode use_liger_kernel "
        "liger_kernel_config torch_empty_cache_steps",
    ),
}

TRL: Mapping[str, Entry] = MappingProxyType(
    {**_ALGORITHM, **_SAMPLING, **_BATCHES, **_OPTIMIZER, **_MODEL, **_DATA, **_OUTPUT, **_NOT_NEEDED, **OLDER}
)
"""Key -> entry. A key that is missing is unsupported."""
