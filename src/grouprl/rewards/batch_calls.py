"""Rewards that get the completions of all groups in one call, in a worker or in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grouprl.ranks import Ranks
from grouprl.rewards.completions import shared_out
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.keywords import call_keywords
from grouprl.rewards.reward_logs import TrainingState
from grouprl.rewards.workers.calling import Called, Signature, call, describe, gather, run_in_thread, signature
from grouprl.rewards.workers.pool import RewardWorkers
from grouprl.types import Group, UserError


def batch_calls(
    rewards: Sequence[WeightedReward], groups: Sequence[Group], pool: RewardWorkers, state: TrainingState
) -> dict[str, list[Called]]:
    """Calls each of the rewards that has one call for all groups; returns what it gave for each group, by name.

    Raises:
        UserError: a reward of this process failed. One that fails in a worker makes all completions invalid.
    """
    found = [reward for reward in rewards if reward.has_one_call]
    keywords = call_keywords(groups) if found else {}
    begun = {  # the workers run these beside the calls in this process
        reward.name: pool.submit(reward.name, keywords, per_step=reward.per_step, state=state, whole=True)
        for reward in found
        if not reward.in_process
    }
    here = {reward.name: _called_here(reward, keywords, state) for reward in found if reward.in_process}
    calls = here | {name: gather(pending) for name, pending in begun.items()}
    return {name: shared_out(called, groups) for name, called in calls.items()}


def refuse_parts(rewards: Sequence[WeightedReward], ranks: Ranks) -> None:
    """Raises UserError for a reward that compares the completions of a batch, of which each rank has only a part."""
    for reward in rewards:
        if reward.scope == "batch" and ranks.world > 1:
            raise UserError(
                f"reward {reward.name}: expected a single process with scope=batch, got {ranks.world} ranks, and each "
                "has only a part of the batch: start one process, or set scope=group"
            )


def signature_of(reward: WeightedReward, pool: RewardWorkers) -> Signature:
    """The signature of a reward of this process or of the workers."""
    if reward.in_process:
        return signature(reward.function)  # type: ignore[arg-type]
    return pool.signatures()[reward.name]


def _called_here(reward: WeightedReward, keywords: dict[str, list[Any]], state: TrainingState) -> Called:
    function: Any = reward.function
    accepts = signature(function)
    try:
        return call(
            function,
            accepts.arguments(keywords),
            keywords["completions"],
            provided=accepts.provided,
            state=state,
            per_step=reward.per_step,
            run=run_in_thread,
        )
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"reward {reward.name}: expected values, got {describe(error)}: fix the function") from error
