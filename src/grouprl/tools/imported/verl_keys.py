"""Every key of a verl configuration (0.9.1), and what each is here.

The defaults are those of verl/trainer/config/_generated_ppo_trainer.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from types import MappingProxyType

from grouprl.tools.imported import verl_losses as losses
from grouprl.tools.imported import verl_rules as rules
from grouprl.tools.imported.table import (
    Entry,
    Outcome,
    Rule,
    also_learned,
    choice,
    folder_name,
    idle,
    in_random_order,
    only,
    same,
)
from grouprl.tools.imported.verl_rewards import REWARD
from grouprl.tools.imported.verl_rules import ESTIMATOR as ESTIMATOR


def _every(key: str) -> Rule:
    return lambda _, value: rules.every(key, value)


def _files(theirs: str, key: str) -> Rule:
    return lambda given, value: rules.files(f"data.{theirs}", key, given, value)


_MODES = (
    "algorithm.surrogate; gspo is algorithm.ratio=sequence, geo_mean gmpo, dppo_tv and dppo_kl cispo with "
    "algorithm.divergence_tv or divergence_kl"
)

_ALGORITHM = {
    ESTIMATOR: Entry("gae", "algorithm, such as algorithm=grpo; gae is ppo", rules.estimator),
    "algorithm.norm_adv_by_std_in_grpo": idle(True, "algorithm.scale"),
    "algorithm.gamma": idle(1.0, "algorithm.gamma, with gae"),
    "algorithm.lam": idle(1.0, "algorithm.lam, with gae"),
    "algorithm.use_kl_in_reward": Entry(False, "algorithm.kl_in", rules.kl_in_reward),
    "algorithm.kl_penalty": idle("kl", "algorithm.kl_estimator, with use_kl_in_reward"),
    "algorithm.kl_ctrl.type": idle("fixed", "see use_kl_in_reward"),
    "algorithm.kl_ctrl.kl_coef": idle(0.001, "algorithm.kl_coef, with use_kl_in_reward"),
    "algorithm.filter_groups.enable": Entry(False, "algorithm.drop_equal and algorithm.refills", rules.filter_groups),
    "algorithm.filter_groups.max_num_gen_batches": idle(0, "algorithm.refills"),
    "algorithm.use_pf_ppo": only(False, "no preference feedback"),
    "algorithm.rollout_correction.rollout_is": Entry(None, "the native engine needs no correction", rules.correction),
    "algorithm.rollout_correction.rollout_rs": Entry(None, "the native engine needs no correction", rules.correction),
    "algorithm.rollout_correction.bypass_mode": idle(False, "the old log-probs are the sampler's, as in bypass mode"),
}

_ACTOR = {
    "ppo_mini_batch_size": Entry(256, "algorithm.minibatches; verl counts prompts", rules.mini_batch),
    "ppo_epochs": same("algorithm.passes", 1),
    "clip_ratio": Entry(0.2, "algorithm.clip_low and clip_high, without clip_ratio_low and _high", losses.clip_ratio),
    "clip_ratio_low": Entry(0.2, "algorithm.clip_low", losses.clip_of("low")),
    "clip_ratio_high": Entry(0.2, "algorithm.clip_high", losses.clip_of("high")),
    "clip_ratio_c": Entry(3.0, "algorithm.dual_clip; with dppo_* algorithm.clip_high + 1", losses.largest_ratio),
    "tau_pos": Entry(1.0, "algorithm.tau_pos", losses.temperature_of_sapo("algorithm.tau_pos")),
    "tau_neg": Entry(1.05, "algorithm.tau_neg", losses.temperature_of_sapo("algorithm.tau_neg")),
    "loss_agg_mode": Entry("token-mean", "algorithm.aggregate", losses.aggregate),
    "loss_scale_factor": idle(None, "see loss_agg_mode"),
    "policy_loss.loss_mode": Entry("vanilla", _MODES, losses.loss_mode),
    "entropy_coeff": Entry(
        0,
        "algorithm.entropy_coef",
        lambda _, value: Outcome("equal", {"algorithm.entropy_coef": value} if value else {}),
    ),
    "use_kl_loss": Entry(False, "algorithm.kl_coef above 0", rules.kl_loss),
    "kl_loss_coef": Entry(0.001, "algorithm.kl_coef, with use_kl_loss", rules.kl_loss_coef),
    "kl_loss_type": Entry("low_var_kl", "algorithm.kl_estimator, with use_kl_loss", rules.kl_loss_type),
    "optim.lr": same("learner.learning_rate", 1e-6),
    "optim.lr_warmup_steps": Entry(-1, "learner.warmup_steps", rules.warmup),
    "optim.lr_warmup_steps_ratio": idle(0.0, "learner.warmup_steps, as a share below 1"),
    "optim.lr_scheduler_type": Entry("constant", "learner.schedule", rules.schedule),
    "optim.warmup_style": Entry(None, "learner.schedule; verl's old name for lr_scheduler_type", rules.warmup_style),
    "optim.min_lr_ratio": idle(0.0, "learner.min_lr_ratio"),
    "optim.lr_decay_style": only(None, "lr_scheduler_type sets the schedule", "constant"),
    "optim.num_cycles": idle(0.5, "the cosine schedule is half a cosine"),
    "optim.weight_decay": Entry(0.01, "learner.weight_decay", rules.weight_decay),
    "optim.betas": same("learner.betas", [0.9, 0.999]),
    "optim.clip_grad": same("learner.max_grad_norm", 1.0),
    "optim.optimizer": only("AdamW", "the optimizer is AdamW"),
    "optim.override_optimizer_config": only(None, "the optimizer is AdamW"),
    "qat.enable": only(False, "no quantization-aware training"),
    "fsdp_config.qat.enable": only(False, "no quantization-aware training"),
    "fsdp_config.model_dtype": choice(
        "fp32",
        "model.weights",
        {
            "fp32": {"model.weights": "float32"},
            "float32": {"model.weights": "float32"},
            "bf16": {"model.weights": "bfloat16"},
            "bfloat16": {"model.weights": "bfloat16"},
        },
    ),
    "fsdp_config.dtype": choice(
        "bfloat16", "model.dtype", {"bfloat16": {"model.dtype": "bfloat16"}, "float32": {"model.dtype": "float32"}}
    ),
}

_MODEL = {
    "path": Entry("~/models/deepseek-llm-7b-chat", "model.path", rules.model_path),
    "trust_remote_code": only(False, "GroupRL runs no code from a checkpoint"),
    "custom_chat_template": only(None, "model.chat_template, a file"),
    "override_config": only({}, "the model has its checkpoint's configuration"),
    "external_lib": only(None, "GroupRL imports no external library"),
    "lora_rank": Entry(0, "model.lora.rank", partial(rules.lora, "rank")),
    "lora_alpha": Entry(16, "model.lora.alpha", partial(rules.lora, "alpha")),
    "target_modules": Entry("all-linear", "model.lora.targets", partial(rules.lora, "targets")),
    "exclude_modules": only(None, "model.lora.targets names the adapted layers"),
    "lora_adapter_path": only(None, "model.path, the folder of the adapter"),
    "enable_gradient_checkpointing": same("learner.recompute", True),
}

_ROLLOUT = {
    "n": Entry(1, "rollout.group_size", rules.completions),
    "name": idle("vllm", "the native engine samples; vLLM is rollout.engine.name=vllm (docs/vllm.md)"),
    "temperature": same("rollout.temperature", 1.0),
    "top_p": same("rollout.top_p", 1),
    "top_k": Entry(-1, "rollout.top_k; 0 = off", _every("rollout.top_k")),
    "repetition_penalty": also_learned("rollout.repetition_penalty", 1.0),
    "ignore_eos": only(False, "an end token always ends a completion"),
    "multi_turn.enable": only(False, "a recipe has no tools"),
    "response_length": same("rollout.max_tokens", None),
}

_DATA = {
    "train_files": Entry("~/data/rlhf/gsm8k/train.parquet", "task.path", _files("train_files", "task.path")),
    "val_files": Entry(
        "~/data/rlhf/gsm8k/test.parquet", "task.arguments.test_path", _files("val_files", "task.arguments.test_path")
    ),
    "prompt_key": same("task.arguments.prompt_column", "prompt"),
    "reward_fn_key": only("data_source", "the column is data_source"),
    "train_batch_size": same("rollout.problems_per_step", 1024),
    "gen_batch_size": only(None, "a step samples the batch that it trains on"),
    "max_response_length": same("rollout.max_tokens", 512),
    "max_prompt_length": Entry(512, "prompts have no limit", rules.prompt_limit),
    "filter_overlong_prompts": Entry(False, "prompts have no limit", rules.of_prompt_limit),
    "truncation": Entry("error", "prompts have no limit", rules.of_prompt_limit),
    **{
        key: Entry(default, "text only", rules.no_images(f"data.{key}", default))
        for key, default in {"image_key": "images", "video_key": "videos", "audio_key": "audios"}.items()
    },
    "tokenizer": only(None, "model.path, whose folder has the tokenizer"),
    "tool_config_path": only(None, "a recipe has no tools"),
    "function_tool_path": only(None, "a recipe has no tools"),
    "train_max_samples": only(-1, "a run uses all problems of the file"),
    "shuffle": in_random_order(),
    "seed": same("seed", None),
    "apply_chat_template_kwargs": same("model.chat_template_kwargs", {}),
    "custom_cls.path": only(None, "task.path, a file, or a task in Python"),
    "val_max_samples": Entry(-1, "evaluation.problems", rules.validation_rows),
    "sampler.class_path": only(None, "rollout.curriculum.order"),
    "datagen.path": only(None, "no generated data"),
}

_TRAINER = {
    "total_epochs": Entry(30, "epochs", rules.epochs),
    "total_training_steps": same("steps", None),
    "project_name": same("trackers.project", "verl_examples"),
    "experiment_name": Entry("gsm8k", "name", lambda _, value: Outcome("equal", {"name": folder_name(str(value))})),
    "logger": Entry(["console", "wandb"], "trackers.names (docs/trackers.md)", rules.trackers),
    "save_freq": Entry(-1, "checkpoint.every; 0 = at the end", _every("checkpoint.every")),
    "test_freq": Entry(-1, "evaluation.every; 0 = before and after", _every("evaluation.every")),
    "max_actor_ckpt_to_keep": same("checkpoint.keep", None),
    "critic_warmup": idle(0, "algorithm.critic_warmup"),
    "val_only": only(False, "`grouprl eval`"),
}

_OTHERS = {
    "critic.optim.lr": Entry(1e-5, "learner.critic_learning_rate", rules.of_critic("learner.critic_learning_rate")),
    "critic.cliprange_value": Entry(0.5, "algorithm.value_clip", rules.of_critic("algorithm.value_clip")),
    "distillation.enabled": only(False, "no distillation"),
    "actor_rollout_ref.actor.router_replay.mode": only(None, "the router is not replayed", "disabled"),
}


def _under(section: str, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    return {f"{section}.{key}": entry for key, entry in entries.items()}


VERL: Mapping[str, Entry] = MappingProxyType(
    {
        **_ALGORITHM,
        **_under("actor_rollout_ref.actor", _ACTOR),
        **_under("actor_rollout_ref.model", _MODEL),
        **_under("actor_rollout_ref.rollout", _ROLLOUT),
        **_under("data", _DATA),
        **_under("trainer", _TRAINER),
        **REWARD,
        **_OTHERS,
    }
)
"""Dotted key -> entry. A key that is neither here nor in `NOT_NEEDED` is unsupported."""

_DEVICES = "verl's layout of devices and micro-batches; packs, ranks and `torchrun` need no setting"
_KERNELS = "changes how the computation runs, not its math"
_SAMPLER = "a setting of verl's sampler; the native engine shares the learner's weights"
_SAME_ROWS = "does not change which rows are trained"
_PLACE = "a setting of verl's workers and folders; here runs/NAME and --resume"
_OFF = "belongs to a feature that is off: see its switch"

# Section -> why -> the ends of its keys that nothing here depends on; a star stands for all below.
_IDLE: Mapping[str, Mapping[str, str]] = {
    "actor_rollout_ref": {"for verl's workers only": "hybrid_engine nccl_timeout", "as for the policy": "ref.*"},
    "actor_rollout_ref.actor": {
        _DEVICES: "ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu use_dynamic_bsz "
        "strategy ulysses_sequence_parallel_size fsdp_config.* megatron.* rollout_n "
        "optim.override_optimizer_config.optimizer_cpu_offload "
        "optim.override_optimizer_config.optimizer_offload_fraction "
        "optim.override_optimizer_config.overlap_cpu_optimizer_d2h_h2d "
        "optim.override_optimizer_config.use_precision_aware_optimizer",
        _KERNELS: "use_torch_compile use_fused_kernels use_remove_padding use_prefix_grouper pad_to_length "
        "entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing "
        "sum_pi_squared_checkpointing",
        _OFF: "policy_loss.* qat.* profiler.* freeze_vision_tower router_replay.*",
        "a checkpoint holds the whole run": "checkpoint.*",
        "every step records its entropy": "calculate_entropy calculate_sum_pi_squared",
        "optim.clip_grad applies": "grad_clip",
        "a step assigns groups to updates in random order": "shuffle data_loader_seed",
        "the optimizer is torch's AdamW": "optim.optimizer_impl optim.zero_indexed_step",
        "trainer.total_training_steps applies": "optim.total_training_steps",
    },
    "actor_rollout_ref.model": {
        _KERNELS: "enable_activation_offload use_remove_padding use_liger use_fused_kernels fused_kernel_options.* "
        "tiled_mlp.* use_shm",
        _OFF: "mtp.* lora.*",
        "GroupRL reads it from the model's folder": "hf_config_path tokenizer_path",
    },
    "actor_rollout_ref.rollout": {
        _SAMPLER: "mode nnodes n_gpus_per_node full_determinism seed prompt_length dtype gpu_memory_utilization "
        "enforce_eager cudagraph_capture_sizes free_cache_engine tensor_model_parallel_size data_parallel_size "
        "expert_parallel_size pipeline_model_parallel_size max_num_batched_tokens max_model_len max_num_seqs "
        "enable_chunked_prefill enable_prefix_caching logprobs_mode scheduling_policy load_format layered_summon "
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz disable_log_stats "
        "log_prob_max_token_len_per_gpu do_sample over_sample_rate multi_stage_wake_up router_config_path "
        "calculate_log_probs skip_tokenizer_init enable_rollout_routing_replay moe_load_balance_metrics_interval "
        "quantization quantization_config_file mtp qat engine_kwargs.* agent.* checkpoint_engine.* trace.* profiler.* "
        "prometheus.* disaggregation.* skip_rollout skip_dump_dir skip_use_default_dir",
        "evaluation.samples; an evaluation also decodes greedily": "val_kwargs.*",
        _OFF: "multi_turn.*",
    },
    "data": {
        _SAME_ROWS: "use_shm return_raw_input_ids return_raw_chat return_full_prompt dataloader_num_workers "
        "filter_overlong_prompts_workers trust_remote_code custom_cls.name sampler.class_name datagen.name "
        "val_batch_size validation_shuffle image_patch_size return_multi_modal_inputs mm_processor_kwargs",
    },
    "trainer": {
        _PLACE: "balance_batch rollout_data_dir validation_data_dir nnodes n_gpus_per_node esi_redundant_time "
        "resume_mode resume_from_path checkpoint_callback_class default_hdfs_dir del_local_ckpt_after_load "
        "default_local_dir max_critic_ckpt_to_keep ray_wait_register_center_timeout device use_v1 v1.* "
        "use_legacy_worker_impl",
        "rollouts.sqlite records every completion": "log_val_generations val_generations_to_log_to_wandb",
        "a run evaluates before and after training": "val_before_train",
    },
    "algorithm": {
        _OFF: "kl_ctrl.* pf_ppo.*",
        "the filter compares total rewards": "filter_groups.*",
        "see rollout_is": "rollout_correction.*",
    },
    "custom_reward_function": {"rewards.0.arguments": "reward_kwargs.*"},
    "reward": {
        "rewards.0.arguments": "custom_reward_function.reward_kwargs.*",
        "a setting of verl's reward workers; here rollout.scoring": "num_workers reward_manager.* reward_model.* "
        "sandbox_fusion.* reward_kwargs.*",
    },
    "critic": {
        "the critic is a copy of the policy, and learns in the same updates": "rollout_n strategy enable "
        "ppo_mini_batch_size ppo_epochs shuffle data_loader_seed loss_agg_mode loss_scale_factor grad_clip "
        "optim.optimizer optim.optimizer_impl optim.lr_warmup_steps optim.lr_warmup_steps_ratio optim.weight_decay "
        "optim.total_training_steps optim.betas optim.clip_grad optim.min_lr_ratio optim.num_cycles "
        "optim.lr_scheduler_type optim.zero_indexed_step optim.warmup_style optim.override_optimizer_config* model.*",
        _DEVICES: "ppo_micro_batch_size* use_dynamic_bsz ppo_max_token_len_per_gpu forward_max_token_len_per_gpu "
        "forward_micro_batch_size* ulysses_sequence_parallel_size fsdp.* megatron.*",
        "a checkpoint holds the whole run": "checkpoint.*",
        _OFF: "profiler.*",
    },
    "reward_model": {
        _OFF: "num_workers enable_resource_pool n_gpus_per_node nnodes reward_loop_source reward_loop_module_path "
        "reward_loop_class_name model.* rollout.* reward_kwargs.* strategy micro_batch_size micro_batch_size_per_gpu "
        "max_length "
        "use_dynamic_bsz forward_max_token_len_per_gpu launch_reward_fn_async profiler.* use_reward_loop "
        "ulysses_sequence_parallel_size",
        "model-written code runs in the sandbox here (docs/sandbox.md)": "sandbox_fusion.*",
    },
    "reward_manager": {_OFF: "module.*"},
    "distillation": {_OFF: "distillation_loss.* n_gpus_per_node nnodes teacher_models.* teacher_key"},
    "sandbox_fusion": {"model-written code runs in the sandbox here (docs/sandbox.md)": "*"},
    **{name: {"for verl's workers only": "*"} for name in ("global_profiler", "transfer_queue", "ray_kwargs", "skip")},
}

NOT_NEEDED: Mapping[str, str] = MappingProxyType(
    {
        f"{section}.{end}": why
        for section, reasons in _IDLE.items()
        for why, ends in reasons.items()
        for end in ends.split()
    }
)
"""Patterns of keys that nothing here depends on, and why."""


def verl_needs_not(key: str) -> Outcome | None:
    """The outcome of a key of verl that nothing here depends on; None where no pattern names it."""
    why = next((why for pattern, why in NOT_NEEDED.items() if fnmatchcase(key, pattern)), "")
    return Outcome("equal" if why == _SAME_ROWS else "not needed", words=why) if why else None
