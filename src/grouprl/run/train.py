"""Trains: prepares or resumes a run, evaluates, makes the steps, records, saves, stops cleanly, reports."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grouprl import __version__
from grouprl.config.checks import check_sections
from grouprl.config.run import RunConfig, dump_config
from grouprl.forward.devices import resolve_device
from grouprl.leaves import leaf
from grouprl.ranks import open_ranks
from grouprl.record.layout import RunDirectory
from grouprl.record.queries import recorded_verdicts
from grouprl.record.write import RunRecord, refuse_run
from grouprl.rewards.configured import beside_environment, configured_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.learned import LearnedReward
from grouprl.rewards.workers.pool import OpenWorkers
from grouprl.rollout.episodes import open_conversations
from grouprl.run.assemble import RunParts, assemble
from grouprl.run.checkpoint import save_checkpoint
from grouprl.run.code import record_code
from grouprl.run.display import Display, RunEnd, StepBars
from grouprl.run.evaluations import Evaluations
from grouprl.run.findings import GAPS
from grouprl.run.machine import machine_facts, networks_mib, peak_rss_mib
from grouprl.run.needs import episode_length, resource_notes, warnings_of
from grouprl.run.opened import OpenedRun
from grouprl.run.process import Interrupted, StopRequest, stop_on_signal
from grouprl.run.resume import (
    chosen_on_all,
    code_of_run,
    finished_run,
    locked_checkpoint,
    open_record,
    with_run_dtype,
)
from grouprl.run.watch import Explosion, Health, check_health_on_all_ranks, go_back, record_going_back
from grouprl.step import grpo_step
from grouprl.tasks import Task
from grouprl.tasks.curriculum import PassRates, curriculum_metrics, update, verdicts
from grouprl.types import StepRecord, import_extra

Callback = Callable[[StepRecord], None]


def run_to_end(
    config: RunConfig,
    task: Task,
    rewards: Sequence[WeightedReward],
    *,
    display: Display,
    resume: bool = False,
    step: int | None = None,
    trust_code: Sequence[str] = (),
    callback: Callback | None = None,
) -> RunEnd:
    """Runs a configuration to its end, or until the user stops it.

    Args:
        config: the configuration of the run.
        task: the task that gives the problems.
        rewards: the rewards that score the completions.
        display: shows the run to the person who watches it.
        resume: whether to continue from the newest checkpoint; on a CPU the result is bit-identical to a run
            without the interruption.
        step: with `resume`, the checkpoint to continue from (0 = the start); later steps are made again.
        trust_code: code files that may have changed since the run that is resumed was started.
        callback: gets the record of each step on the leading rank, after it is recorded and before a checkpoint; its
            exception stops the run with its own traceback.

    Raises:
        UserError: model, data or run directory do not fit the configuration; nothing is overwritten.
    """
    task = OpenedRun(config, task).task
    if config.epochs is not None:  # the last step completes the last epoch
        visits = config.epochs * len(task.problems("train"))
        steps = max(1, math.ceil(visits / config.rollout.problems_per_step))
        config = config.model_copy(update={"steps": steps, "epochs": None})
    config = with_run_dtype(config, resume=resume)
    check_sections(config)
    # Device, adapter and name are checked before a model is loaded, which can take minutes.
    resolve_device(config.model.device, config.model.dtype)
    if config.model.lora is not None:
        import_extra("peft", "lora", "model.lora")
    directory = Path(config.runs_dir) / config.name
    if not resume and RunDirectory(directory).holder() is None:
        refuse_run(directory)
    with ExitStack() as stack:
        device, threads = config.model.device, config.model.threads
        ranks = stack.enter_context(open_ranks(**dict(config.distributed), device=device, threads=threads))
        ranks.agree(
            f"{dump_config(config)}torch: {torch.__version__}\ngrouprl: {__version__}\n", "settings and versions"
        )
        if not ranks.leads:
            display = display.silent()
        names = config.trackers.names
        trackers = [stack.enter_context(leaf("trackers")(config, display.say, leads=ranks.leads))] if names else []
        lock = saved = None
        if resume:
            lock, finished_steps, saved = locked_checkpoint(stack, config, ranks, step, display.say)
            if finished_steps is not None:
                return finished_run(directory, finished_steps, lock=lock, display=display)
        display.say("\n".join(resource_notes(config, task, ranks.world)))
        conversations = stack.enter_context(open_conversations(config, task))
        rewards = beside_environment(config, task, rewards, getattr(conversations, "gives_reward", None))
        samplers: Any = None  # the actors of a cluster that sample; None = this process does
        scorers: OpenWorkers | None = None
        if config.cluster.backend != "none":
            cluster = stack.enter_context(leaf("cluster")(config.cluster, display.say, ranks))
            samplers = stack.enter_context(leaf("cluster.samplers")(cluster, config))
            scorers = partial(leaf("cluster.scorers"), cluster) if config.cluster.scorers else None
        scorer = stack.enter_context(configured_scorer(config, task, rewards, ranks=ranks, elsewhere=scorers))
        assembled = partial(assemble, config, task, scorer, ranks=ranks, samplers=samplers, conversations=conversations)
        with display.status("loading the model"):
            parts = assembled(saved=saved)
        if conversations is not None and config.environment.max_tokens is None:
            display.say(episode_length(parts, config))
        code = code_of_run(config, task, parts, ranks, directory if resume else None, trust_code)
        for warning in warnings_of(parts, config):
            display.say(f"Warning: {warning}")
        with stop_on_signal(display.say) as stop:
            opened = partial(open_record, directory, config, lock=lock, display=display)
            loop = partial(_RunLoop, config, code["run"], display, trackers, stop=stop, callback=callback)
            try:
                with opened(parts=parts, resume=resume) as record:
                    record.rewards(scorer.weights, scorer.process_weights)
                    if ranks.leads:
                        record_code(directory, code, config)
                    return loop(parts, record).run()
            except Explosion as explosion:
                finding = explosion.finding
                saved = chosen_on_all(partial(go_back, directory, explosion, display), ranks)
            # Outside of the except block, whose traceback holds the weights that exploded.
            del parts
            parts = assembled(saved=saved)
            with opened(parts=parts, resume=True) as record:
                record_going_back(record, finding, parts.state.step)
                return loop(parts, record).run()


class _RunLoop:
    """Makes the steps of one run and records them."""

    def __init__(
        self,
        config: RunConfig,
        run: str,
        display: Display,
        trackers: Sequence[Any],
        parts: RunParts,
        record: RunRecord,
        *,
        stop: StopRequest,
        callback: Callback | None,
    ) -> None:
        self._config, self._parts, self._record, self._callback = config, parts, record, callback
        self._trackers = trackers
        self._display, self._stop, self._ranks = display, stop, parts.step_parts.learner.ranks
        self._state, self._started = replace(parts.state, run=run), time.perf_counter()
        sampler = "vllm" if config.rollout.engine.name == "vllm" else config.model.dtype
        self._health = Health(record, display, GAPS[sampler])
        self._evaluations = Evaluations(config, parts, record, display, trackers, self._health, stop)
        self._saved = self._state.step  # the last step with a checkpoint
        verdicts_of_run = partial(recorded_verdicts, record.directory, until=parts.state.step)
        recorded = self._ranks.decided(verdicts_of_run, "recorded verdicts")
        self._rates = update(PassRates(), recorded, half_life=config.rollout.curriculum.half_life)

    def run(self) -> RunEnd:
        """Makes the remaining steps, with an evaluation before and after."""
        for tracker in self._trackers:
            tracker.begin(self._state.step)
        evaluations: dict[str, Any] = {}
        with suppress(Interrupted):
            evaluations["before"] = self._evaluations.evaluate(self._state.step, "before")
            config = self._config
            self._evaluations.look(self._state.step)
            completions = config.rollout.problems_per_step * config.rollout.group_size
            scorer = self._parts.step_parts.scorer
            self._display.heading(accuracy=scorer.verifier in scorer.rewards)
            with self._display.training(config.steps, self._state.step, completions) as bars:
                while self._state.step < config.steps and not any(
                    self._ranks.gather(self._stop.asked, "stop requests")
                ):
                    self._one_step(bars)
                    # Before the checkpoint: a run that resumes from it does not evaluate again.
                    self._evaluations.look(self._state.step)
                    every = config.checkpoint.every
                    if every and self._state.step % every == 0:
                        self._save()
        if self._saved < self._state.step or not self._state.step:
            self._save()
        if self._state.step >= self._config.steps:
            if self._ranks.leads:
                self._health.end()
            with suppress(Interrupted):
                evaluations["after"] = self._evaluations.evaluate(self._state.step, "after")
        if finished := evaluations.keys() >= {"before", "after"}:
            measure = self._parts.step_parts.scorer.measure
            change = self._ranks.decided(partial(self._evaluations.change, self._state.step), "change")
            self._display.comparison(evaluations["before"], evaluations["after"], measure=measure)
            evaluations |= {"measure": measure, "change": change}
        config, state, directory = self._config, self._state, self._record.directory
        parts = self._parts.step_parts
        learned = [reward.function.mib for reward in parts.scorer.rewards if isinstance(reward.function, LearnedReward)]
        summary = evaluations | {
            "state": "finished" if finished else "stopped",
            "train_seconds": state.train_seconds,
            "total_seconds": time.perf_counter() - self._started,
            "steps": state.step,
            "seed": config.seed,
            "peak_rss_mib": max(state.peak_rss_mib, peak_rss_mib()),
            "completion_tokens": state.completion_tokens,
            "model": config.model.path,
            "task": parts.task.name,
            "algorithm": config.algorithm.name,
            "networks_mib": networks_mib(parts.learner) | ({"reward_model": sum(learned)} if learned else {}),
            "machine": machine_facts(resolve_device(config.model.device)),
        }
        end = RunEnd(directory, summary, finished, config.steps)
        if self._ranks.leads:
            self._record.summary(summary)
            self._display.end(end)
        return end

    def _one_step(self, bars: StepBars) -> None:
        began = time.perf_counter()
        step, learner, ahead = self._state.step + 1, self._parts.step_parts.learner, self._parts.ahead
        self._record.step_in_progress = step
        if ahead is not None:
            ahead.begin(step)

        def on_finished(completions: int) -> None:
            self._stop.check()
            bars.sampled(completions)

        record = grpo_step(self._parts.step_parts, step, self._rates, on_finished=on_finished)
        bars.stepped()
        new_verdicts = verdicts(record.groups, record.outcomes)
        self._rates = update(self._rates, new_verdicts, half_life=self._config.rollout.curriculum.half_life)
        pass_rates = curriculum_metrics(self._rates) if self._parts.step_parts.scorer.verifier else {}
        metrics = {**record.metrics, **pass_rates, "rss_mib": peak_rss_mib()}
        if ahead is not None:
            versions = [completion.weights_version for group in record.groups for completion in group.completions]
            metrics["staleness"] = self._state.updates - min(versions)
        record = replace(record, metrics=metrics)
        self._record.step(record)
        for tracker in self._trackers:
            tracker.step(record)
        self._display.step(step, self._config.steps, metrics)
        flat = [outcome for row in record.outcomes for outcome in row]
        self._display.invalid([outcome.reason for outcome in flat if not outcome.valid], len(flat))
        check_health_on_all_ranks(self._health, step, metrics, learner)
        self._state = replace(
            self._state,
            step=step,
            updates=learner.optimizer.updates,
            kl_coef=learner.kl_coef,
            entropy_coef=learner.entropy_coefs[0],
            entropy_bonus=learner.entropy_coefs[1],
            critic_updates=learner.critic.optimizer.updates if learner.critic else 0,
            train_seconds=self._state.train_seconds + time.perf_counter() - began,
            completion_tokens=self._state.completion_tokens + int(metrics["completion_tokens"]),
            peak_rss_mib=max(self._state.peak_rss_mib, peak_rss_mib()),
        )
        if self._callback is not None and self._ranks.leads:
            self._callback(record)

    def _save(self) -> None:
        ahead = self._parts.ahead
        save_checkpoint(
            self._record.directory,
            self._state,
            self._parts.step_parts.learner,
            self._parts.step_parts.tokenizer,
            keep=self._config.checkpoint.keep,
            ahead=None if ahead is None else partial(ahead.save, self._state.step + 1),
        )
        self._saved = self._state.step
