"""What TRL logs about a step, by TRL's names and definitions, and the state that its callbacks read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import TrainerState

from grouprl.algorithms import clipped_tokens
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.named.cispo import Cispo
from grouprl.algorithms.spec import Algorithm
from grouprl.tools.trackers.following import tracked_name
from grouprl.trl.arguments import Plan
from grouprl.trl.config import GRPOConfig
from grouprl.types import StepRecord, StopReason, TokenTrace

_LAST = ("grad_norm", "learning_rate", "num_tokens")  # of the newest step; others are means over the steps of a log
_EQUAL = ("kl", "entropy", "entropy_coef", "router_aux_loss")  # recorded as TRL defines them
_LOGS = "reward_logs/"


def trl_metrics(record: StepRecord, algorithm: Algorithm) -> dict[str, float]:
    """The metrics that TRL 1.16 logs for a step; NaN where it has none, such as a reward that applies to nothing.

    A deviation is the sample's, over the whole batch. Where a step has several updates, the numbers are of the last
    pass.
    """
    completions = [completion for group in record.groups for completion in group.completions]
    outcomes = [outcome for row in record.outcomes for outcome in row]
    metrics = {name: record.metrics.get(name, 0.0) for name in ("loss", "grad_norm", "learning_rate")}

    lengths = [len(completion) for completion in completions]
    ended = [len(completion) for completion in completions if completion.stop_reason is StopReason.END]
    prompts = sum(len(group.prompt_ids) * len(group.completions) for group in record.groups)
    metrics["num_tokens"] = prompts + sum(lengths)
    for prefix, counts in (("", lengths), ("terminated_", ended or [0])):
        for name, function in (("mean", statistics.fmean), ("min", min), ("max", max)):
            metrics[f"completions/{name}_{prefix}length"] = float(function(counts))
    metrics["completions/clipped_ratio"] = 1 - len(ended) / len(completions)
    if episodes := [completion.episode for completion in completions if completion.episode is not None]:
        calls = [call for episode in episodes for call in episode.calls]
        metrics["tools/call_frequency"] = len(calls) / len(completions)
        metrics["tools/failure_frequency"] = sum(bool(call.fault) for call in calls) / max(1, len(calls))

    for name in dict.fromkeys(name for outcome in outcomes for name in outcome.components):
        values = [value for outcome in outcomes if (value := outcome.components.get(name)) is not None]
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = _mean(values), _deviation(values)
    groups = [[outcome.total for outcome in row if outcome.valid] for row in record.outcomes]
    totals = [total for group in groups for total in group]
    metrics["reward"], metrics["reward_std"] = _mean(totals), _deviation(totals)
    compared = [totals] * len(groups) if getattr(algorithm.advantage, "scale", "") == "batch_std" else groups
    metrics["frac_reward_zero_std"] = _mean([len({*group}) == 1 for group in compared])
    metrics |= {tracked_name(name): value for name, value in record.metrics.items() if name.startswith(_LOGS)}
    metrics["entropy"] = math.nan  # in a step without an advantage
    metrics |= {"kl": 0.0} if algorithm.has_kl_loss else {}  # without an advantage, at the reference
    metrics |= {tracked_name(name): record.metrics[name] for name in _EQUAL if name in record.metrics}
    metrics |= _clip_metrics(record, algorithm)
    return metrics | {"step_time": record.metrics["time/total"]}


def _clip_metrics(record: StepRecord, algorithm: Algorithm) -> dict[str, float]:
    """Shares of tokens whose ratio was clipped in the last pass: over all tokens, and the extremes of completions."""
    objective = algorithm.objective
    if not isinstance(objective, Clip | Cispo):
        return {}
    low, high = list[tuple[float, int]](), list[tuple[float, int]]()
    traces = record.traces or [[TokenTrace()] * len(group.completions) for group in record.groups]
    for group, group_traces, advantages in zip(record.groups, traces, record.token_advantages, strict=True):
        for completion, trace, advantages_T in zip(group.completions, group_traces, advantages, strict=True):
            ratios_T = torch.ones(len(completion))  # with one update, or without a gradient
            if trace.logprobs is not None and algorithm.updates.count > 1:
                gaps_T = torch.tensor(trace.logprobs) - torch.tensor(trace.old or completion.logprobs)
                ratios_T = (gaps_T if objective.ratio == "token" else gaps_T.mean().expand_as(gaps_T)).exp()
            sides = clipped_tokens(
                ratios_T[None],
                torch.tensor(advantages_T)[None],
                clip_low=objective.clip_low,
                clip_high=objective.clip_high,
            )
            for side, shares in zip(sides, (low, high), strict=True):
                shares.append((float(side.float().sum()), len(completion)))

    def mean(shares: Sequence[tuple[float, int]]) -> float:
        return sum(clipped for clipped, _ in shares) / sum(length for _, length in shares)

    if isinstance(objective, Cispo):
        return {"cispo_clip_ratio": mean(high)}
    return {
        "clip_ratio/low_mean": mean(low),
        "clip_ratio/high_mean": mean(high),
        "clip_ratio/region_mean": mean(low) + mean(high),
        "clip_ratio/low_min": min(clipped / length for clipped, length in low),
        "clip_ratio/high_max": max(clipped / length for clipped, length in high),
    }


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan


class History:
    """The log of a training in TRL's form: `state.log_history` has an entry each `logging_steps` updates."""

    def __init__(self, args: GRPOConfig, plan: Plan) -> None:
        self.args, self.updates, self.updates_per_epoch = args, plan.updates, plan.updates_per_epoch
        self.state = TrainerState(
            max_steps=plan.max_steps,
            num_train_epochs=math.ceil(plan.max_steps / plan.updates_per_epoch),
            logging_steps=args.logging_steps,
            save_steps=args.save_steps,
            eval_steps=args.eval_steps,
            train_batch_size=args.per_device_train_batch_size,
        )
        self._pending: list[dict[str, float]] = []
        self.losses: list[float] = []

    def add(self, record: StepRecord, algorithm: Algorithm) -> bool:
        """Counts a step; whether a log is due after it."""
        state, args = self.state, self.args
        metrics = trl_metrics(record, algorithm)
        state.num_input_tokens_seen += int(metrics["num_tokens"])
        self._pending.append(metrics | {"num_tokens": state.num_input_tokens_seen})
        self.losses.append(metrics["loss"])
        before, state.global_step = state.global_step, record.step * self.updates
        epoch_before, state.epoch = state.epoch or 0.0, state.global_step / self.updates_per_epoch
        if args.logging_strategy == "epoch":
            return int(state.epoch) > int(epoch_before)
        every = args.logging_steps if args.logging_steps >= 1 else math.ceil(state.max_steps * args.logging_steps)
        first = args.logging_first_step and not before
        return args.logging_strategy == "steps" and bool(first or state.global_step // every > before // every)

    def logs(self) -> dict[str, float | None]:
        """The metrics since the last log."""
        names = dict.fromkeys(name for metrics in self._pending for name in metrics)
        logs: dict[str, float | None] = {}
        for name in names:
            values = [metrics[name] for metrics in self._pending if not math.isnan(metrics.get(name, math.nan))]
            logs[name] = None if not values else values[-1] if name in _LAST else statistics.fmean(values)
        self._pending = []
        return logs

    def write(self, logs: Mapping[str, Any], step: int | None = None) -> dict[str, Any]:
        """Adds an entry to `log_history`; of an earlier step where one is given."""
        step = self.state.global_step if step is None else step
        entry = {**logs, "epoch": step / self.updates_per_epoch, "step": step}
        self.state.log_history.append(entry)
        return entry
