"""Branches of a recorded completion: the reward with another token at one position, and everything else unchanged.

The weights before the step are computed as in a replay, and what follows the other token is sampled at the recorded
completion's own random numbers. So the difference of the rewards is the effect of that token, not of other luck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from grouprl.config.run import RunConfig
from grouprl.forward.attention import is_packed
from grouprl.models.prompts import completion_texts
from grouprl.record.branches import Branch, BranchedCompletion, BranchedToken
from grouprl.record.queries import recorded_verdicts
from grouprl.record.read import RecordedGroup
from grouprl.rewards.configured import check_rewards
from grouprl.rollout.engine import Request
from grouprl.run.assemble import problem_order
from grouprl.run.opened import OpenedRun
from grouprl.tasks.curriculum import PassRates, Visit, update
from grouprl.tools.proof.branch_engine import BranchEngine, ReadCompletion
from grouprl.tools.proof.replay import learner_before, recorded_step
from grouprl.types import Completion, RewardOutcome, UserError, unknown_name


@dataclass(frozen=True)
class Selection:
    """Which completion of a step, and which other tokens."""

    problem: str | None = None  # id; None = the first group whose rewards differ, else the first group
    completion: int = 0  # index in its group
    positions: tuple[int, ...] = ()  # of tokens; empty = those with the largest entropies
    tokens: int = 16  # most positions, where none are given
    alternatives: int = 3  # most other tokens at a position: the likeliest
    least: float = 0.01  # their least probability


def branch(
    run: Path,
    step: int,
    config: RunConfig,
    selection: Selection,
    *,
    learned: Callable[[int], None] = lambda step: None,
    sampled: Callable[[int, int], None] = lambda done, total: None,
) -> BranchedCompletion:
    """Samples and scores the branches of a recorded completion; writes nothing.

    Args:
        run: the run directory.
        step: 1, 2, ...
        config: the configuration of the run.
        selection: the completion and its other tokens.
        learned: called with each recorded step that was learned again, to compute the weights.
        sampled: called with the number of branches that just ended, and that of all.

    Raises:
        UserError: the completion is not recorded or has no branches; or what is computed is not what was recorded.
    """
    if config.rollout.engine.name != "native":
        raise UserError(
            f"{run}: expected completions of rollout.engine.name=native, got {config.rollout.engine.name}, which draws "
            "random numbers of its own: give a run of the native engine"
        )
    groups = recorded_step(run, step)
    group_index, recorded = _chosen(run, step, groups, selection)
    completion = recorded.group.completions[selection.completion]
    opened = OpenedRun(config)
    check_rewards(config, opened.task, opened.rewards)
    problem, stream = _visit(run, step, opened, groups, group_index)
    learner, _, _ = learner_before(run, opened, step, learned=learned)
    policy = learner.policy
    if (updates := learner.optimizer.updates) != completion.weights_version:
        raise UserError(
            f"{run}: expected a completion of the weights before step {step}, after {updates} updates, got one after "
            f"{completion.weights_version}: branches need a run with cluster.max_staleness=0"
        )
    if not is_packed(policy):
        raise UserError(
            f"{run}: expected a model that reads packed tokens, got {type(policy).__name__}, whose states cannot be "
            "shared by branches: take another model"
        )
    rows, dtype = config.rollout.max_rows, config.model.dtype
    engine = BranchEngine(policy, opened.tokenizer, seed=config.seed, max_rows=rows, dtype=dtype)
    engine.load_weights(updates)
    read = engine.read(Request(problem, recorded.group.prompt_ids, 1, stream), completion, opened.sampling)
    by_entropy = sorted(range(len(read.entropies)), key=lambda at: -read.entropies[at])
    likely_by_position: dict[int, dict[int, float]] = {}
    for at in selection.positions or by_entropy:
        likely = engine.likely(read, at, selection.alternatives, selection.least)
        if len(likely) > 1:
            likely_by_position[at] = likely
        if len(likely_by_position) == selection.tokens and not selection.positions:
            break
    if not likely_by_position:
        raise UserError(
            f"{read.request.problem.id}: expected another token with a probability of at least {selection.least:g}, "
            "found none: lower --least, or take another completion"
        )
    chances = dict(sorted(likely_by_position.items()))
    starts = [(at, token) for at, likely in chances.items() for token in likely if token != completion.token_ids[at]]
    kept = min(chances)  # nothing after it may change where its token does not
    starts = [(kept, completion.token_ids[kept]), *starts]
    samples = engine.sample(read, starts, on_finished=lambda done: sampled(done, len(starts)))
    _refuse_another(run, step, completion, samples[0])
    # In groups of the recorded size, which is what the time limits of rewards are for.
    size = len(recorded.group.completions)
    parts = [
        tuple(replace(sample, index=index) for index, sample in enumerate(samples[at : at + size]))
        for at in range(0, len(samples), size)
    ]
    scored, _ = opened.score(
        [replace(recorded.group, problem=problem, completions=part) for part in parts], opened.rewards, step
    )
    outcomes = [outcome for group in scored for outcome in group]
    _refuse_another_reward(run, recorded.outcomes[selection.completion], outcomes[0])
    prompt = len(recorded.group.prompt_ids)
    return BranchedCompletion(
        step=step,
        group=group_index,
        completion=selection.completion,
        problem_id=problem.id,
        token_ids=completion.token_ids,
        reward=_number(outcomes[0].total),
        tokens=_tokens(opened.tokenizer, read, chances, starts, samples, outcomes),
        tokens_computed=read.tokens
        + sum(len(sample) - at - 1 for sample, (at, _) in zip(samples, starts, strict=True)),
        tokens_without_prefix=sum(prompt + len(sample) - 1 for sample in samples),
    )


def _chosen(run: Path, step: int, groups: Sequence[RecordedGroup], selection: Selection) -> tuple[int, RecordedGroup]:
    """The place of the group, and the group."""
    ids = [group.group.problem.id for group in groups]
    if selection.problem is not None and selection.problem not in ids:
        raise unknown_name(f"step {step}, --problem", selection.problem, ids, listed_by=f"grouprl lab {run}")
    signals = [len({outcome.total for outcome in group.outcomes if outcome.valid}) > 1 for group in groups]
    signal = signals.index(True) if True in signals else 0
    group_index = signal if selection.problem is None else ids.index(selection.problem)
    where, completions = f"step {step}, {ids[group_index]}", groups[group_index].group.completions
    if selection.completion >= len(completions):
        raise UserError(
            f"{where}: expected --completion below {len(completions)}, got {selection.completion}: give another"
        )
    completion = completions[selection.completion]
    if completion.episode is not None:
        raise UserError(
            f"{where}: expected a completion of one turn, got an episode: its environment would "
            "have to be played again, and its answers are not counted random numbers"
        )
    if beyond := [at for at in selection.positions if not 0 <= at < len(completion)]:
        raise UserError(
            f"{where}: expected --position of 0 to {len(completion) - 1}, as the completion has "
            f"{len(completion)} tokens, got {beyond[0]}"
        )
    return group_index, groups[group_index]


def _visit(run: Path, step: int, opened: OpenedRun, groups: Sequence[RecordedGroup], group_index: int) -> Visit:
    """The problem as the task has it, and its random stream, which follows from the order of problems."""
    config, train = opened.config, opened.task.problems("train")
    verdicts = recorded_verdicts(run, until=step - 1)
    rates, order = update(PassRates(), verdicts, half_life=config.rollout.curriculum.half_life), problem_order(config)
    visits = order.visits(train, step=step, rates=rates)
    wanted = len(visits)
    for refill in range(1, config.algorithm.group_filter.refills + 1):
        if len(visits) <= group_index:
            missing = wanted - sum(group.kept for group in groups[: len(visits)])
            visits += order.refill(train, missing, step=step, round_=refill, rates=rates, visited=len(visits))
    names = [visits[group_index][0].id if len(visits) > group_index else "none", groups[group_index].group.problem.id]
    if names[0] != names[1]:
        raise UserError(
            f"{run}: expected the problem {names[1]} as group {group_index} of step {step}, got {names[0]}: restore "
            "the task's data"
        )
    return visits[group_index]


def _refuse_another(run: Path, step: int, completion: Completion, sampled: Completion) -> None:
    if (sampled.token_ids, sampled.stop_reason) == (completion.token_ids, completion.stop_reason):
        return
    pairs = enumerate(zip(sampled.token_ids, completion.token_ids, strict=False))
    token_index = next((at for at, (token, other) in pairs if token != other), min(len(sampled), len(completion)))
    raise UserError(
        f"{run}: expected the completion again where no token is changed, got another one from token {token_index} on: "
        f"the weights or the machine are not the run's, which grouprl replay {run} {step} shows, or bfloat16 rounds"
    )


def _refuse_another_reward(run: Path, recorded: RewardOutcome, again: RewardOutcome) -> None:
    if recorded.valid != again.valid or (
        again.valid and not math.isclose(recorded.total, again.total, rel_tol=1e-4, abs_tol=1e-6)
    ):
        raise UserError(
            f"{run}: expected the recorded reward {recorded.total:g} for the completion again, got {again.total:g}: it "
            "depends on more than the completion (chance, the other completions, the time), so that a difference is "
            "no effect of a token"
        )


def _tokens(
    tokenizer: PreTrainedTokenizerBase,
    read: ReadCompletion,
    chances: Mapping[int, Mapping[int, float]],
    starts: Sequence[tuple[int, int]],
    samples: Sequence[Completion],
    outcomes: Sequence[RewardOutcome],
) -> tuple[BranchedToken, ...]:
    ids = read.completion.token_ids
    branches = dict.fromkeys(chances, tuple[Branch, ...]())
    for (at, token), sample, outcome in [*zip(starts, samples, outcomes, strict=True)][1:]:
        (text,) = completion_texts([sample.token_ids[at:]], tokenizer)
        verdict = _number(outcome.total), outcome.correct
        branches[at] += (
            Branch(
                token, tokenizer.decode([token]), chances[at][token], *verdict, len(sample), sample.stop_reason, text
            ),
        )
    return tuple(
        BranchedToken(at, ids[at], tokenizer.decode([ids[at]]), chances[at][ids[at]], read.entropies[at], others)
        for at, others in branches.items()
    )


def _number(total: float) -> float | None:
    return None if math.isnan(total) else total
