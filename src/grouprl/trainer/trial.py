"""Tries a model outside of a run: evaluates it, or samples a group of completions and scores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from grouprl.algorithms.advantages import CompletionAdvantage
from grouprl.config.run import RunConfig
from grouprl.evaluation.evaluate import Evaluation, evaluate
from grouprl.learner.batch import component
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.templates import is_rendered
from grouprl.record.layout import RunDirectory
from grouprl.rewards.configured import beside_environment, configured_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.rollout import Request
from grouprl.rollout.episodes import open_conversations
from grouprl.run.opened import OpenedRun
from grouprl.types import Group, Problem, RewardOutcome, UserError


@dataclass(frozen=True)
class SampledGroup:
    """The completions of one problem, with their rewards and advantages."""

    group: Group
    outcomes: tuple[RewardOutcome, ...]  # empty without rewards
    advantages: tuple[float, ...]  # empty where they are per token or per reasoning step, too


def evaluate_model(
    run: OpenedRun, rewards: Sequence[WeightedReward], *, on_finished: Callable[[int], None] | None = None
) -> Evaluation:
    """Evaluates the model of a run on its held-out problems by `rewards`, as the run's `evaluation` section says.

    Raises:
        UserError: the model cannot be loaded, or a prompt is too long for it; there are no held-out problems.
    """
    config, task = run.config, run.task
    with ExitStack() as stack:
        conversations = stack.enter_context(open_conversations(config, task))
        rewards = beside_environment(config, task, rewards, getattr(conversations, "gives_reward", None))
        if not run.held_out:
            raise UserError(
                f"evaluation.problems: expected at least 1 problem of the split {config.evaluation.split}, got 0: "
                "raise it, or choose another evaluation.split"
            )
        return evaluate(
            run.engine(run.model, conversations),
            task,
            stack.enter_context(configured_scorer(config, task, rewards)),
            run.requests([(problem, "") for problem in run.held_out], 1, conversations),
            sampling=run.sampling,
            samples=config.evaluation.samples,
            tokenizer=run.tokenizer,
            judged=config.evaluation.judge,
            on_finished=on_finished,
        )


def sample_group(run: OpenedRun, prompt: Problem | str, rewards: Sequence[WeightedReward]) -> SampledGroup:
    """Samples one group from the model of a run, and scores it.

    Args:
        run: gives the model, the sampling parameters, the group's size and the algorithm.
        prompt: a problem, or the text of a prompt, which is a user's message where the model has a chat template.
        rewards: empty = the completions are not scored.

    Raises:
        UserError: the model cannot be loaded, or the prompt is too long for it.
    """
    config, task = run.config, run.task
    with open_conversations(config, task) as conversations:
        if isinstance(prompt, str):
            is_plain = run.tokenizer.chat_template is None or is_rendered(prompt, run.tokenizer)
            problem = Problem("own", prompt if is_plain else ({"role": "user", "content": prompt},))
        else:
            problem = prompt
        problem = problem if conversations is None else conversations.opened(problem)
        ids = prompt_token_ids(problem, run.tokenizer, longest=run.longest_prompt)
        request = Request(problem, ids, config.rollout.group_size)
        (group,) = run.engine(run.model, conversations).generate([request], run.sampling)
        if not isinstance(prompt, str):
            rewards = beside_environment(config, task, rewards, getattr(conversations, "gives_reward", None))
    if not rewards:
        return SampledGroup(group, (), ())
    (outcomes,), weights = run.score([group], rewards, step=1)
    advantage, advantages = config.algorithm.advantage, tuple[float, ...]()
    if isinstance(advantage, CompletionAdvantage):
        components = {name: component(outcomes, name) for name in weights}
        totals_G = torch.tensor([outcome.total for outcome in outcomes], dtype=torch.float64)
        one_group_G = torch.zeros(len(outcomes), dtype=torch.long)
        lengths_G = torch.tensor([len(completion) for completion in group.completions])
        advantages = tuple(advantage.compare(totals_G, components, weights, one_group_G, lengths_G).tolist())
    return SampledGroup(group, outcomes, advantages)


def with_newest(config: RunConfig, directory: Path) -> RunConfig:
    """The configuration with the newest checkpoint of a run as its model, where there is one."""
    run = RunDirectory(directory)
    saved = run.checkpoints() if run.exists else ()
    if not saved:
        return config
    # A checkpoint has its chat template; only a hub id has a revision.
    changes = {"path": str(saved[-1].path), "chat_template": None, "revision": None}
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})
