"""Tests a run's rewards before training, on completions that should score and on cheap tricks that should not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Console

from grouprl.config.run import RunConfig
from grouprl.models.load import load_tokenizer
from grouprl.record.read import RecordedGroup, read_rollouts, read_run
from grouprl.rewards.configured import beside_recorded, check_rewards, configured_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.run.machine import with_dtype
from grouprl.run.opened import OpenedRun
from grouprl.tasks import Task
from grouprl.tools.check_reward.findings import (
    KindScores,
    RewardCheck,
    RewardFacts,
    Totals,
    cautions,
    judged_otherwise,
    kind_scores,
    reward_facts,
    verdict_of,
)
from grouprl.tools.check_reward.screen import show
from grouprl.tools.check_reward.trials import KINDS, RECORDED, score_trials, trial_completions
from grouprl.trainer.terminal import Terminal
from grouprl.types import UserError

__all__ = ["KINDS", "KindScores", "RewardCheck", "RewardFacts", "check_reward", "trial_completions", "try_rewards"]


def check_reward(
    config: RunConfig, *, problems: int = 32, run: Path | None = None, as_json: bool = False
) -> RewardCheck:
    """Tries the rewards of a run on the first train problems of its task, and prints the findings.

    Args:
        config: the run; of its model only the tokenizer is loaded.
        problems: number of problems, at least 1.
        run: a run, of which as many groups are scored again, the last first; its episodes with their messages.
        as_json: whether to print one JSON object instead of tables.

    Raises:
        UserError: the task or a reward cannot be loaded, or does not fit the run.
    """
    opened = OpenedRun(with_dtype(config))
    recorded: list[RecordedGroup] = []
    if run is not None:
        for row in reversed(read_run(run).metrics):
            recorded += read_rollouts(run, row["step"])[: problems - len(recorded)]
        if not recorded:
            raise UserError(f"{run}: expected a run with recorded completions, got none: train one, or leave --run out")
    checked = try_rewards(opened.config, opened.task, opened.rewards, problems=problems, recorded=recorded)
    if as_json:
        kinds = []
        for scores in checked.kinds:
            total = asdict(scores.total) if scores.total else dict.fromkeys(field.name for field in fields(Totals))
            flat = asdict(scores.kind) | asdict(scores) | total
            kinds.append({name: value for name, value in flat.items() if name not in ("kind", "total", "needs")})
        print(json.dumps({**asdict(checked), "kinds": kinds, "beaten": checked.beaten, "passed": checked.passed}))
    else:
        show(Console(highlight=False), checked)
    return checked


def try_rewards(
    config: RunConfig,
    task: Task,
    rewards: Sequence[WeightedReward],
    *,
    problems: int = 32,
    recorded: Sequence[RecordedGroup] = (),
) -> RewardCheck:
    """Scores the completions of `trial_completions` for the first train problems of a task, and recorded groups.

    Rewards run in worker processes as in training, under `rollout.scoring`, but invalid completions never stop them.

    Raises:
        UserError: a reward cannot be loaded, needs a column that no problem has, or does not fit the run.
    """
    if problems < 1:
        raise UserError(f"problems: expected at least 1, got {problems}: the tricks are made from them")
    rewards = beside_recorded(config, task, rewards, [recorded_group.group for recorded_group in recorded])
    check_rewards(config, task, rewards)
    tried_problems = task.problems("train")[:problems]
    golds = [task.gold(problem) for problem in tried_problems]
    texts = trial_completions(tried_problems, golds, config.task.format)
    with configured_scorer(config, task, rewards, max_invalid=1.0, verified=True) as scorer:
        tokenizer = load_tokenizer(config.model)
        scorer.check_columns(tried_problems)
        groups = [recorded_group.group for recorded_group in recorded]
        count = sum(map(len, texts)) + sum(len(group.completions) for group in groups)
        with Terminal(errors=True).progress("check", 2 * count) as advance:
            trials = score_trials(scorer, tokenizer, tried_problems, texts, advance, groups)
        weights = {reward.name: reward.weight for reward in rewards} | scorer.weights
    per_step = {reward.name for reward in rewards if reward.per_step}
    of_kind = {kind: [trial for trial in trials if trial.kind == kind] for kind in (*KINDS, RECORDED)}
    before = [outcome for recorded_group in recorded for outcome in recorded_group.outcomes]
    kinds = tuple(kind_scores(kind, tried, weights) for kind, tried in of_kind.items() if tried)
    facts = tuple(reward_facts(*weighted, trials, per_step=weighted[0] in per_step) for weighted in weights.items())
    return RewardCheck(
        task=task.name,
        problems=len(tried_problems),
        kinds=kinds,
        left_out={kind.name: kind.needs for kind, tried in of_kind.items() if not tried and kind in KINDS},
        rewards=facts,
        warnings=(
            *cautions(trials, kinds, facts, max_tokens=config.rollout.max_tokens, verifier=task.verifier),
            *judged_otherwise([trial.outcome for trial in of_kind[RECORDED]], before),
        ),
        verdict=verdict_of(kinds),
    )
