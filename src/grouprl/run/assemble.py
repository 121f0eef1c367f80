"""Loads and checks the parts of a run before its directory is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.values import SharedCritic
from grouprl.config.run import RunConfig
from grouprl.forward.devices import resolve_device
from grouprl.forward.recompute import recompute_activations, recomputes
from grouprl.learner import Learner, Optimizer
from grouprl.learner.terms import CriticBeside, Term
from grouprl.leaves import leaf
from grouprl.models.adapters import add_adapter, attach_adapter
from grouprl.models.load import check_tokens, fingerprint, frozen_copy, load_model
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.shard import shard_model, shard_module
from grouprl.ranks import Ranks
from grouprl.record.layout import Checkpoint, RunDirectory
from grouprl.rewards.configured import check_golds, check_rewards, in_memory
from grouprl.rewards.scorer import Scorer
from grouprl.rollout import Engine, NativeEngine, Request, SpreadEngine
from grouprl.rollout.engine import EarlyEngine
from grouprl.rollout.episodes import Conversations
from grouprl.rollout.verify import check_sampler
from grouprl.run.checkpoint import TrainerState, load_learner, problems_fingerprint
from grouprl.run.code import refuse_changes
from grouprl.run.opened import OpenedRun
from grouprl.step import StepParts
from grouprl.tasks import Task
from grouprl.tasks.curriculum import EdgeOrder, PassRates, ProblemOrder, UniformOrder
from grouprl.types import UserError

_FEW = 16  # problems


@dataclass(frozen=True)
class RunParts:
    """A run that is ready for its next step."""

    step_parts: StepParts
    held_out: Sequence[Request]
    state: TrainerState
    ahead: Any | None  # `grouprl.engines.ahead.Ahead` of a cluster whose samplers work ahead


def assemble(
    config: RunConfig,
    task: Task,
    scorer: Scorer,
    *,
    saved: tuple[Checkpoint, TrainerState] | None = None,
    ranks: Ranks | None = None,
    samplers: Any | None = None,
    conversations: Conversations | None = None,
) -> RunParts:
    """Loads and checks the parts of a run.

    Args:
        config: the run.
        task: gives the problems.
        scorer: scores the completions.
        saved: checkpoint and state of the run to resume; None = a new run.
        ranks: those that compute the run together; None = a single process.
        samplers: the actors that sample; None = this process does.
        conversations: its environments; None = completions have a single turn.

    Raises:
        UserError: model, data or rewards do not fit the run.
    """
    check_rewards(config, task, scorer.rewards)
    # It ends with this function: a run that does not train its start model does not keep it.
    run = OpenedRun(config, task)
    train, held_out = task.problems("train"), run.held_out
    data = problems_fingerprint(train)
    check_golds(scorer, (train, held_out))
    start, tokenizer = run.model, run.tokenizer
    weights = fingerprint(start)
    has_teacher = config.algorithm.distill is not None
    teacher = leaf("term.distill").make_teacher(config, task, tokenizer, start) if has_teacher else None
    teacher_fingerprint = "" if teacher is None or teacher.model is None else fingerprint(teacher.model)
    (ranks or Ranks()).agree(
        f"model: {weights}\nproblems: {data}\nteacher: {teacher_fingerprint}", "model, problems and teacher"
    )
    now = TrainerState(start=weights, data=data, teacher=teacher_fingerprint, kl_coef=config.algorithm.kl_coef)
    _, state = saved or (None, now)
    refuse_changes("resume", state.origin, now.origin)
    check_tokens(start, tokenizer)
    learner = make_learner(config, start, saved, ranks, teacher)
    engine = _engine(run, learner, weights, samplers, conversations)
    parts = StepParts(
        task=task,
        scorer=scorer,
        engine=engine,
        learner=learner,
        tokenizer=tokenizer,
        sampling=run.sampling,
        longest_prompt=run.longest_prompt,
        problems_per_step=config.rollout.problems_per_step,
        group_size=config.rollout.group_size,
        order=problem_order(config),
        opened=None if conversations is None else conversations.opened,
    )
    held_out_requests = run.requests([(problem, "") for problem in held_out], 1, conversations)
    # A prompt that is too long is refused before the run starts.
    checked, refills = set[str](), learner.algorithm.group_filter.refills
    for problem in parts.order.possible(train, steps=range(state.step + 1, config.steps + 1), refills=refills):
        if problem.id not in checked:
            checked.add(problem.id)
            opened = problem if parts.opened is None else parts.opened(problem)
            prompt_token_ids(opened, tokenizer, longest=parts.longest_prompt)
            for term in learner.terms:
                term.check(problem)
        # An environment may take a second to begin, so that only some begin before the run does.
        if len(checked) == (len(train) if parts.opened is None else min(_FEW, len(train))):
            break
    if config.rollout.curriculum.order == "edge" and task.verifier is None:
        raise UserError(
            f"rollout.curriculum.order: expected a task with a verifier for edge, got {task.name}, which has none: "
            "give the problems an answer, give the task a verifier, or set rollout.curriculum.order=uniform"
        )
    parts.order.visits(train, step=1, rates=PassRates())  # raises for too few problems
    scored = (*(in_memory(train) or train[: parts.problems_per_step]), *held_out)
    has_objects = conversations is not None and conversations.has_objects
    scorer.check_columns(list({problem.id: problem for problem in scored}.values()), has_objects=has_objects)
    parts.engine.load_weights(state.updates)
    # Only of the start model: after an explosion rounding alone is larger.
    if saved is None and isinstance(engine, NativeEngine) and {config.model.dtype, config.model.weights} == {"float32"}:
        alone = NativeEngine(learner.policy, tokenizer, seed=config.seed, max_rows=config.rollout.max_rows)
        check_sampler(alone, learner.policy, most_tokens=config.rollout.max_tokens)
    ahead = None
    if config.cluster.max_staleness and isinstance(engine, EarlyEngine):
        ahead = leaf("cluster.ahead")(parts, engine, config.steps, config.cluster.max_staleness)
        if saved is not None:
            ahead.load(state.step + 1, saved[0].ahead)
    return RunParts(parts, held_out_requests, state, ahead)


def make_learner(
    config: RunConfig,
    start: PreTrainedModel,
    saved: tuple[Checkpoint, TrainerState] | None,
    ranks: Ranks | None = None,
    teacher: Any | None = None,
) -> Learner:
    """Makes the learner of a run as it was after a checkpoint; without one, as it begins from the start model.

    `teacher`: from `grouprl.terms.distill.make_teacher`, for an algorithm with distillation.
    """
    checkpoint, state = saved or (None, None)
    ranks = ranks or Ranks(exact=config.distributed.exact)
    algorithm, settings, device = config.algorithm, config.learner, resolve_device(config.model.device)
    total = config.steps * algorithm.updates.count
    if config.model.lora is not None and checkpoint is not None:
        policy = attach_adapter(start, checkpoint.path)
    elif config.model.lora is not None:
        policy = add_adapter(start, config.model.lora, seed=config.seed)
    else:
        weights = config.model.weights
        policy = start if checkpoint is None else load_model(str(checkpoint.path), device=device, weights=weights)
    reference: PreTrainedModel | None = None
    if algorithm.kl is not None and config.model.lora is not None:
        reference = policy  # the policy without its adapter, see `grouprl.models.adapters.as_reference`
    elif algorithm.kl is not None:
        reference = frozen_copy(start) if start is policy else start.requires_grad_(False)
    if reference is not None and reference is not policy and config.model.reference == "cpu":
        reference.to("cpu")
    if recomputes(settings.recompute, device.type):
        recompute_activations(policy)
    critic = None if algorithm.critic is None else leaf("term.critic").make_critic(policy, algorithm.critic)
    if ranks.mesh is not None:
        for network in (policy, None if reference is policy else reference, critic and critic.trunk):
            if network is not None:
                shard_model(network, ranks.mesh, config.model.dtype)
        if critic is not None:
            shard_module(critic.head, ranks.mesh)

    critic_learner = None
    if critic is not None:
        rate = settings.learning_rate if settings.critic_learning_rate is None else settings.critic_learning_rate
        changed = settings.model_copy(update={"learning_rate": rate})
        optimizer = Optimizer(
            critic, changed, total_updates=total, rate_name="learner.critic_learning_rate", seed=config.seed
        )
        critic_learner = leaf("term.critic").CriticLearner(critic, optimizer, algorithm.critic)
    learner = Learner(
        policy=policy,
        reference=reference,
        optimizer=Optimizer(policy, settings, total_updates=total, seed=config.seed),
        algorithm=algorithm,
        device=device,
        dtype=config.model.dtype,
        micro_batch_tokens=settings.micro_batch_tokens,
        critic=critic_learner,
        ranks=ranks,
        further_terms=loss_terms(algorithm, policy, reference, critic_learner, teacher),
    )
    if checkpoint is not None and state is not None:
        load_learner(checkpoint, learner, state)
    return learner


def loss_terms(
    algorithm: Algorithm,
    policy: PreTrainedModel,
    reference: PreTrainedModel | None,
    critic: CriticBeside | None,
    teacher: Any | None,
) -> tuple[Term, ...]:
    """The terms of an algorithm's loss beside the policy's and the entropy's, in the order in which they are added."""
    terms: list[Term] = []
    if algorithm.router_aux_coef > 0:
        terms.append(leaf("term.router")(policy, algorithm.router_aux_coef))
    if algorithm.distill is not None:
        terms.append(leaf("term.distill").DistillTerm(teacher, policy, reference))
    if critic is not None and isinstance(algorithm.critic, SharedCritic):
        terms.append(leaf("term.critic").CriticTerm(critic))
    return tuple(terms)


def _engine(
    run: OpenedRun, learner: Learner, start: str, samplers: Any | None, conversations: Conversations | None
) -> Engine:
    """Makes the engine that samples; a server is checked now, before the run directory is touched."""
    config, policy, rows = run.config, learner.policy, run.config.rollout.max_rows
    engine: Engine
    if config.rollout.engine.name == "vllm":
        folder = RunDirectory(Path(config.runs_dir) / config.name).published
        server = leaf("engine.vllm")(
            config.rollout.engine,
            policy,
            run.tokenizer,
            seed=config.seed,
            max_rows=rows,
            folder=folder,
            ranks=learner.ranks,
        )
        server.check_server()
        return server if learner.ranks.world == 1 else SpreadEngine(server, learner.ranks, None)
    if samplers is not None:
        engine = leaf("cluster.engine")(samplers, policy, start, rows)
    else:
        engine = run.engine(policy, conversations)
    return engine if learner.ranks.world == 1 else SpreadEngine(engine, learner.ranks, policy)


def problem_order(config: RunConfig) -> ProblemOrder:
    """What chooses the problems of a run's steps."""
    count, curriculum = config.rollout.problems_per_step, config.rollout.curriculum
    if curriculum.order == "uniform":
        return UniformOrder(count, config.seed)
    return EdgeOrder(count, config.seed, config.rollout.group_size, curriculum.floor, curriculum.sharpness)
