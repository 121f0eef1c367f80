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
    place, recorded = _chosen(run, step, groups, selection)
    completion = recorded.group.completions[selection.completion]
    opened = OpenedRun(config)
    check_rewards(config, opened.task, opened.rewards)
    problem, stream = _visit(run, step, opened, groups, place)
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
    found: dict[int, dict[int, float]] = {}
    for at in selection.positions or by_entropy:
        likely = engine.likely(read, at, selection.alternatives, selection.least)
        if len(likely) > 1:
            found[at] = likely
        if len(found) == selection.tokens and not selection.positions:
            break
    if not found:
        raise UserError(
            f"{read.request.problem.id}: expected another token with a probability of at least {selection.least:g}, "
            "found none: lower --least, or take another completion"
        )
    chances = dict(sorted(found.items()))
    begun = [(at, token) for at, found in chances.items() for token in found if token != completion.token_ids[at]]
    kept = min(chances)  # nothing after it may change where its token does not
    begun = [(kept, completion.token_ids[kept]), *begun]
    made = engine.sample(read, begun, on_finished=lambda done: sampled(done, len(begun)))
    _refuse_another(run, step, completion, made[0])
    # In groups of the recorded size, which is what the time limits of rewards are for.
    size = len(recorded.group.completions)
    parts = [
        tuple(replace(one, index=index) for index, one in enumerate(made[at : at + size]))
        for at in range(0, len(made), size)
    ]
    scored, _ = opened.score(
        [replace(recorded.group, problem=problem, completions=part) for part in parts], opened.rewards, step
    )
    outcomes = [outcome for group in scored for outcome in group]
    _refuse_another_reward(run, recorded.outcomes[selection.completion], outcomes[0])
    prompt = len(recorded.group.prompt_ids)
    return BranchedCompletion(
        step=step,
        group=place,
        completion=selection.completion,
        problem_id=problem.id,
        token_ids=completion.token_ids,
        reward=_number(outcomes[0].total),
        tokens=_tokens(opened.tokenizer, read, chances, begun, made, outcomes),
        tokens_computed=read.tokens + sum(len(one) - at - 1 for one, (at, _) in zip(made, begun, strict=True)),
        tokens_without_prefix=sum(prompt + len(one) - 1 for one in made),
    )


def _chosen(run: Path, step: int, groups: Sequence[RecordedGroup], selection: Selection) -> tuple[int, RecordedGroup]:
    """The place of the group, and the group."""
    ids = [one.group.problem.id for one in groups]
    if selection.problem is not None and selection.problem not in ids:
        raise unknown_name(f"step {step}, --problem", selection.problem, ids, listed_by=f"grouprl lab {run}")
    signals = [len({outcome.total for outcome in one.outcomes if outcome.valid}) > 1 for one in groups]
    signal = signals.index(True) if True in signals else 0
    place = signal if selection.problem is None else ids.index(selection.problem)
    completions = groups[place].group.completions
    if selection.completion >= len(completions):
        raise UserError(
            f"step {step}, {ids[place]}: expected --completion below {len(completions)}, got {selection.completion}"
        )
    completion = completions[selection.completion]
    if completion.episode is not None:
        raise UserError(
            f"step {step}, {ids[place]}: expected a completion of one turn, got an episode: its environment would "
            "have to be played again, and its answers are not counted random numbers"
        )
    if beyond := [at for at in selection.positions if not 0 <= at < len(completion)]:
        raise UserError(
            f"step {step}, {ids[place]}: expected --position of 0 to {len(completion) - 1}, as the completion has "
            f"{len(completion)} tokens, got {beyond[0]}"
        )
    return place, groups[place]


def _visit(run: Path, step: int, opened: OpenedRun, groups: Sequence[RecordedGroup], place: int) -> Visit:
    """The problem as the task has it, and its random stream, which follows from the order of problems."""
    config, train = opened.config, opened.task.problems("train")
    verdicts = recorded_verdicts(run, until=step - 1)
    rates, order = update(PassRates(), verdicts, half_life=config.rollout.curriculum.half_life), problem_order(config)
    visits = order.visits(train, step=step, rates=rates)
    wanted = len(visits)
    for refill in range(1, config.algorithm.group_filter.refills + 1):
        if len(visits) <= place:
            missing = wanted - sum(group.kept for group in groups[: len(visits)])
            visits += order.refill(train, missing, step=step, round_=refill, rates=rates, visited=len(visits))
    names = [visits[place][0].id if len(visits) > place else "none", groups[place].group.problem.id]
    if names[0] != names[1]:
        raise UserError(
            f"{run}: expected the problem {names[1]} as group {place} of step {step}, got {names[0]}: restore the "
            "task's data"
        )
    return visits[place]


def _refuse_another(run: Path, step: int, completion: Completion, made: Completion) -> None:
    if (made.token_ids, made.stop_reason) == (completion.token_ids, completion.stop_reason):
        return
    pairs = enumerate(zip(made.token_ids, completion.token_ids, strict=False))
    place = next((at for at, (one, other) in pairs if one != other), min(len(made), len(completion)))
    raise UserError(
        f"{run}: expected the completion again where no token is changed, got another one from token {place} on: "
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
    begun: Sequence[tuple[int, int]],
    made: Sequence[Completion],
    outcomes: Sequence[RewardOutcome],
) -> tuple[BranchedToken, ...]:
    ids = read.completion.token_ids
    branches = dict.fromkeys(chances, tuple[Branch, ...]())
    for (at, token), one, outcome in [*zip(begun, made, outcomes, strict=True)][1:]:
        (text,) = completion_texts([one.token_ids[at:]], tokenizer)
        verdict = _number(outcome.total), outcome.correct
        branches[at] += (
            Branch(token, tokenizer.decode([token]), chances[at][token], *verdict, len(one), one.stop_reason, text),
        )
    return tuple(
        BranchedToken(at, ids[at], tokenizer.decode([ids[at]]), chances[at][ids[at]], read.entropies[at], found)
        for at, found in branches.items()
    )


def _number(total: float) -> float | None:
    return None if math.isnan(total) else total
