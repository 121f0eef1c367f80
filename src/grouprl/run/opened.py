"""A run opened once: the task, rewards, model, tokenizer and sampling parameters that its configuration names.

`trainer`, `tools` and `lab` read it. It is in `run/`, because `run.assemble` makes a training of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.config.run import RunConfig
from grouprl.forward.devices import resolve_device
from grouprl.models.load import context_length, load_model, load_tokenizer
from grouprl.rewards.configured import configured_rewards, configured_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.rollout import NativeEngine, Request, make_requests
from grouprl.rollout.engine import structured_sampling
from grouprl.rollout.episodes import Conversations, bound, has_turns
from grouprl.tasks import Task, load_task
from grouprl.tasks.held_out import chosen_in, trained_on_the_rest
from grouprl.types import Group, Problem, RewardOutcome, Sampling, UserError


@dataclass(frozen=True)
class OpenedRun:
    """What a configuration names; each part is loaded once, when it is first read, and raises UserError then."""

    config: RunConfig
    task_object: Task | None = None  # of a program; None = the configuration names the task

    @cached_property
    def task(self) -> Task:
        """The task with the problems that the run trains on and holds out."""
        task, evaluation = self.task_object, self.config.evaluation
        if task is None:
            task = load_task(**self.config.task.model_dump())
        task = trained_on_the_rest(task, evaluation.split if evaluation.problems else None)
        return chosen_in(task, self.config.rollout.curriculum.chosen)

    @cached_property
    def rewards(self) -> tuple[WeightedReward, ...]:
        """The rewards that the configuration names, or the task's own."""
        return configured_rewards(self.config, self.task)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The start model on its device; a learner may train it in place."""
        config = self.config.model
        if config.threads:
            torch.set_num_threads(config.threads)
        return load_model(config, device=resolve_device(config.device), weights=config.weights)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model, with the configured chat template."""
        return load_tokenizer(self.config.model)

    @cached_property
    def sampling(self) -> Sampling:
        """The sampling parameters, with what a regular expression allows of the model's tokens."""
        rollout = self.config.rollout
        sampling = replace(rollout.sampling, is_stale=self.config.cluster.max_staleness > 0)
        return structured_sampling(sampling, rollout.regex, self.model, self.tokenizer)

    @property
    def held_out(self) -> Sequence[Problem]:
        """The problems that an evaluation uses."""
        return self.task.problems(self.config.evaluation.split)[: self.config.evaluation.problems]

    @cached_property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt, after which a completion or a whole episode must fit."""
        rollout, context = self.config.rollout, context_length(self.model)
        episode = self.config.environment.max_tokens if has_turns(self.config, self.task) else None
        most_tokens = episode or rollout.max_tokens
        if most_tokens >= context:
            name = "rollout" if most_tokens == rollout.max_tokens else "environment"
            raise UserError(
                f"{name}.max_tokens: expected less than the model's context of {context} tokens, got {most_tokens}: "
                "lower it"
            )
        return context - most_tokens

    def requests(
        self, visits: Sequence[tuple[Problem, str]], completions: int, conversations: Conversations | None = None
    ) -> list[Request]:
        """The groups to sample: see `make_requests`; of the environments of `conversations`, if it has some."""
        opened = None if conversations is None else conversations.opened
        longest = self.longest_prompt
        return make_requests(visits, self.tokenizer, completions=completions, longest_prompt=longest, opened=opened)

    def engine(self, policy: PreTrainedModel, conversations: Conversations | None = None) -> NativeEngine:
        """The engine that samples from this process's weights of the policy."""
        config = self.config
        conversation = bound(conversations, policy, self.tokenizer, config.rollout.max_tokens)
        return NativeEngine(
            policy,
            self.tokenizer,
            seed=config.seed,
            max_rows=config.rollout.max_rows,
            dtype=config.model.dtype,
            conversation=conversation,
        )

    def score(
        self, groups: Sequence[Group], rewards: Sequence[WeightedReward], step: int
    ) -> tuple[list[tuple[RewardOutcome, ...]], dict[str, float]]:
        """Scores groups as the run does in a step, in worker processes that end with it; nothing is trained on them.

        Returns the outcomes, and the weight of each component of their totals.
        """
        # With max_invalid=1 even a step of invalid completions is shown.
        with configured_scorer(self.config, self.task, rewards, max_invalid=1.0) as scorer:
            scorer.begin_step(step)
            return scorer.finish([scorer.begin(group) for group in groups], self.tokenizer), scorer.weights
