"""Tries a model outside of a run: evaluates it, or samples a group of completions and scores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms.advantages import CompletionAdvantage
from grouprl.config.run import RunConfig
from grouprl.evaluation.evaluate import Evaluation, evaluate
from grouprl.forward.precision import resolve_device
from grouprl.learner.batch import component
from grouprl.models.load import context_length, load_model, load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.templates import is_rendered
from grouprl.record.layout import RunDirectory
from grouprl.rewards.configured import beside_environment, configured_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.rollout import NativeEngine, Request, make_requests
from grouprl.rollout.engine import structured_sampling
from grouprl.rollout.episodes import Conversations, bound, open_conversations
from grouprl.tasks import Task
from grouprl.types import Group, Problem, RewardOutcome, UserError


@dataclass(frozen=True)
class SampledGroup:
    """The completions of one problem, with their rewards and advantages."""

    group: Group
    outcomes: tuple[RewardOutcome, ...]  # empty without rewards
    advantages: tuple[float, ...]  # empty where they are per token or per reasoning step, too


def evaluate_model(
    config: RunConfig,
    task: Task,
    rewards: Sequence[WeightedReward],
    *,
    on_finished: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluates `config.model` on the held-out problems of a task by a run's rewards, as `config.evaluation` says.

    Raises:
        UserError: the model cannot be loaded, or a prompt is too long for it; there are no held-out problems.
    """
    with ExitStack() as stack:
        conversations = stack.enter_context(open_conversations(config, task))
        rewards = beside_environment(config, task, rewards, getattr(conversations, "gives_reward", None))
        model, tokenizer, engine, most_tokens = _engine(config, conversations)
        longest = context_length(model) - most_tokens
        problems = task.problems(config.evaluation.split)[: config.evaluation.problems]
        visits = [(problem, "") for problem in problems]
        opened = None if conversations is None else conversations.opened
        prompts = make_requests(visits, tokenizer, completions=1, longest_prompt=longest, opened=opened)
        if not prompts:
            raise UserError(
                f"evaluation.problems: expected at least 1 problem of the split {config.evaluation.split}, got "
                f"{min(len(problems), config.evaluation.problems)}: raise it, or choose another evaluation.split"
            )
        return evaluate(
            engine,
            task,
            stack.enter_context(configured_scorer(config, task, rewards)),
            prompts,
            sampling=structured_sampling(config.rollout.sampling, config.rollout.regex, model, tokenizer),
            samples=config.evaluation.samples,
            tokenizer=tokenizer,
            judged=config.evaluation.judge,
            on_finished=on_finished,
        )


def sample_group(
    config: RunConfig, task: Task, prompt: Problem | str, rewards: Sequence[WeightedReward]
) -> SampledGroup:
    """Samples one group from `config.model`, and scores it.

    Args:
        config: the model, the sampling parameters, the group's size and the algorithm.
        task: whose verifier the rewards may use.
        prompt: a problem, or the text of a prompt, which is a user's message where the model has a chat template.
        rewards: empty = the completions are not scored.

    Raises:
        UserError: the model cannot be loaded, or the prompt is too long for it.
    """
    with open_conversations(config, task) as conversations:
        model, tokenizer, engine, most_tokens = _engine(config, conversations)
        if isinstance(prompt, str):
            is_plain = tokenizer.chat_template is None or is_rendered(prompt, tokenizer)
            problem = Problem("own", prompt if is_plain else ({"role": "user", "content": prompt},))
        else:
            problem = prompt
        problem = problem if conversations is None else conversations.opened(problem)
        ids = prompt_token_ids(problem, tokenizer, longest=context_length(model) - most_tokens)
        sampling = structured_sampling(config.rollout.sampling, config.rollout.regex, model, tokenizer)
        group = engine.generate([Request(problem, ids, config.rollout.group_size)], sampling)[0]
        if not isinstance(prompt, str):
            rewards = beside_environment(config, task, rewards, getattr(conversations, "gives_reward", None))
    outcomes, weights = score_group(config, task, group, rewards, tokenizer) if rewards else ((), {})
    return SampledGroup(group, outcomes, _advantages(config, outcomes, weights))


def score_group(
    config: RunConfig,
    task: Task,
    group: Group,
    rewards: Sequence[WeightedReward],
    tokenizer: PreTrainedTokenizerBase,
    *,
    step: int = 1,
) -> tuple[tuple[RewardOutcome, ...], dict[str, float]]:
    """Scores one group as a run of this configuration does in a step, in worker processes that end with it.

    Returns the outcomes, and the weight of each component of their totals.
    """
    # max_invalid=1, because whoever looks wants to see why completions are invalid.
    with configured_scorer(config, task, rewards, max_invalid=1.0) as scorer:
        scorer.begin_step(step)
        return scorer.finish([scorer.begin(group)], tokenizer)[0], scorer.weights


def with_newest(config: RunConfig, run: RunDirectory) -> RunConfig:
    """The configuration with the newest checkpoint of a run as its model, where there is one."""
    saved = run.checkpoints() if run.exists else ()
    if not saved:
        return config
    # A checkpoint has its chat template; only a hub id has a revision.
    changes = {"path": str(saved[-1].path), "chat_template": None, "revision": None}
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})


def _advantages(
    config: RunConfig, outcomes: Sequence[RewardOutcome], weights: Mapping[str, float]
) -> tuple[float, ...]:
    advantage = config.algorithm.advantage
    if not outcomes or not isinstance(advantage, CompletionAdvantage):
        return ()
    components = {name: component(outcomes, name) for name in weights}
    totals_G = torch.tensor([outcome.total for outcome in outcomes], dtype=torch.float64)
    advantages_G = advantage.compare(totals_G, components, weights, torch.zeros(len(outcomes), dtype=torch.long))
    return tuple(float(value) for value in advantages_G)


def _engine(
    config: RunConfig, conversations: Conversations | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, NativeEngine, int]:
    """Model, tokenizer and engine, and the tokens that must fit after a prompt."""
    torch.set_num_threads(config.model.threads or torch.get_num_threads())
    model = load_model(config.model, device=resolve_device(config.model.device), weights=config.model.weights)
    tokenizer = load_tokenizer(config.model)
    longest = config.rollout.max_tokens
    talk = bound(conversations, model, tokenizer, longest)
    engine = NativeEngine(
        model,
        tokenizer,
        seed=config.seed,
        max_rows=config.rollout.max_rows,
        dtype=config.model.dtype,
        conversation=talk,
    )
    return model, tokenizer, engine, (talk and config.environment.max_tokens) or longest
