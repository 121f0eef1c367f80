"""Checks that sections of a run's configuration fit each other."""

from __future__ import annotations

from grouprl.algorithms.values import CopiedCritic
from grouprl.config.algorithm import options, refuse_missing_parts
from grouprl.config.run import CurriculumConfig, RolloutConfig, RunConfig
from grouprl.types import UserError


def check_sections(config: RunConfig) -> None:
    """Checks that sections fit each other. This is no validator, because `Trainer` sets the algorithm later.

    Raises:
        UserError: an algorithm whose program is missing, a critic's setting without a critic, a reference that an
            adapter cannot replace, or groups too small for the baseline.
    """
    refuse_missing_parts(config.algorithm)
    algorithm, size, rate = config.algorithm, config.rollout.group_size, config.learner.critic_learning_rate
    if rate is not None and algorithm.critic is None:
        raise UserError(
            f"learner.critic_learning_rate: expected none with algorithm.critic='none', got {rate}: "
            "set algorithm=ppo, or remove it"
        )
    if config.model.lora is not None and algorithm.kl is not None and algorithm.kl.refresh_reference:
        raise UserError(
            f"algorithm.refresh_reference: expected 0 with model.lora, got {algorithm.kl.refresh_reference}: a "
            "reference that is the model without its adapter cannot change; remove it, or set model.lora=null"
        )
    _check_teacher(config)
    engine = config.rollout.engine
    if engine.name == "vllm" and (engine.address is None) == (not engine.addresses):
        raise UserError(
            "rollout.engine.address: expected the address of the server with name=vllm, or addresses of several, got "
            f"{'both' if engine.address else 'none'}: give it, such as http://127.0.0.1:8000"
        )
    if engine.name == "vllm" and config.cluster.backend != "none":
        raise UserError(
            "rollout.engine.name: expected native with cluster.backend=ray, got vllm, whose servers need no sampler "
            "actors: remove cluster; for several servers, set rollout.engine.addresses and use torchrun"
        )
    if config.rollout.engine.name == "vllm" and config.rollout.min_p > 0 and config.rollout.top_p < 1:
        raise UserError(
            f"rollout.min_p: expected 0 with top_p below 1 and engine.name=vllm, got {config.rollout.min_p}: vLLM "
            "applies min_p before top_p, GroupRL after it; set one of the two, or engine.name=native"
        )
    if lead := config.cluster.max_staleness:
        wanted = f"with cluster.max_staleness={lead}, whose groups an older policy sampled"
        objective = config.algorithm.objective
        if config.algorithm.correction is None and objective.divergence_tv is objective.divergence_kl is None:
            raise UserError(
                f"algorithm.correction: expected truncate or mask {wanted}, got none: set one, or "
                "algorithm.divergence_tv=0.2"
            )
        if config.rollout.curriculum.order != "uniform":
            raise UserError(
                f"rollout.curriculum.order: expected uniform {wanted}, got {config.rollout.curriculum.order}: the "
                "order needs verdicts that come too late; set it to uniform"
            )
    model, shard = config.model, config.distributed.shard
    for name, small in (
        ("model.weights", model.weights != "float32"),
        ("learner.moments", config.learner.moments != "float32"),
        ("learner.paged", config.learner.paged),
        ("model.reference", model.reference == "cpu"),
    ):
        if small and shard:
            raise UserError(f"{name}: expected its default with distributed.shard=true, got another value: remove it")
    if model.weights != "float32" and model.dtype == "float32":
        raise UserError(
            f"model.weights: expected float32 with model.dtype=float32, got {model.weights}: set model.dtype=bfloat16"
        )
    if config.learner.moments == "8bit" and model.weights == "bfloat16" and model.lora is None:
        raise UserError(
            "learner.moments: expected bfloat16 with model.weights=bfloat16, got 8bit, whose library would lose small "
            "updates of such weights: change one, or train an adapter with model.lora={}"
        )
    if model.weights == "nf4":
        if model.lora is None:
            raise UserError(
                "model.weights: expected an adapter with nf4, got none: 4-bit weights do not train; set model.lora={}, "
                "and if model.path is an adapter's folder, merge it first (grouprl merge)"
            )
        if isinstance(config.algorithm.critic, CopiedCritic):
            raise UserError("model.weights: expected bfloat16 with a critic beside the policy, got nf4: change one")
        if config.rollout.engine.name == "vllm" or config.cluster.backend != "none":
            raise UserError("model.weights: expected bfloat16 with samplers in other processes, got nf4: change one")
    if config.distributed.exact and config.distributed.shard:
        raise UserError(
            "distributed: expected exact or shard, got both: the backend adds gradients of sharded weights in its "
            "own order; remove one"
        )
    chosen, usual = config.rollout.curriculum, CurriculumConfig()
    for field in ("floor", "sharpness"):
        if chosen.order == "uniform" and getattr(chosen, field) != getattr(usual, field):
            raise UserError(f"rollout.curriculum.{field}: expected order=edge with it, got uniform: remove it")
    compared = algorithm.distill is None  # with a teacher, single completions learn from it alone
    alone = {"mean", "leave_one_out", "length_mean", "best_other", "group_std"} if size == 1 and compared else set()
    if compared and size * config.rollout.problems_per_step == 1 and algorithm.advantage.credit == "completion":
        alone |= {"batch_mean", "batch_std"}
    chosen_options = options(algorithm)
    for field in ("baseline", "scale"):
        if chosen_options.get(field) in alone:
            raise UserError(
                f"rollout.group_size: expected 2 or more with algorithm.{field}={chosen_options[field]!r}, "
                f"got {size}: a completion is compared with the others of its group; raise it"
            )


def _check_teacher(config: RunConfig) -> None:
    """Checks that a teacher's distribution can be compared with the policy's, from weights that are in one place."""
    if (part := config.algorithm.distill) is None:
        return
    rollout, usual = config.rollout, RolloutConfig()
    for field in ("top_p", "top_k", "min_p", "repetition_penalty", "regex"):
        if (got := getattr(rollout, field)) != getattr(usual, field):
            raise UserError(
                f"rollout.{field}: expected {getattr(usual, field)} with algorithm.distill, whose KL is over the whole "
                f"vocabulary, got {got}: remove it"
            )
    if config.distributed.shard:
        raise UserError("distributed.shard: expected false with algorithm.distill, got true: remove one")
    if part.distill_teacher == "reference" and config.model.reference == "cpu":
        raise UserError(
            "model.reference: expected device with algorithm.distill_teacher=reference, got cpu: remove one"
        )
