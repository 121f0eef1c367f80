"""ONE GRPO STEP: the only file where the packages meet. Read it beside algorithm 1 of arXiv:2402.03300.

P problems -> G completions each -> rewards -> advantages relative to the group -> clipped updates -> new weights
What this step leaves out of the paper, or does otherwise, by default:
1. The reward model is not trained on (line 12): rewards come from rules and verifiers, which do not change.
2. A group without signal has advantages of exactly 0 and costs no update; DAPO's filter samples others in its place.
3. The deviation is the population's, as in the texts' worked examples; the paper leaves it open (option `std`).
4. With one update a batch the ratio is exactly 1: a sampler that rounds otherwise than the learner cannot move it.
5. The outer loop runs once: the reference stays the first policy, unless `refresh_reference` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress

from transformers import PreTrainedTokenizerBase

from grouprl.evaluation.ledger import token_ledger
from grouprl.evaluation.metrics import Clock, correct_without_work_share, step_metrics
from grouprl.learner import BatchUpdates, Learner, ScoredGroups, assign_credit, make_batch, token_record, trace_updates
from grouprl.rewards.scorer import Scorer, Scoring
from grouprl.rollout import Engine, make_requests
from grouprl.tasks import Task
from grouprl.tasks.curriculum import PassRates, ProblemOrder
from grouprl.types import Group, Problem, RewardOutcome, Sampling, StepRecord


@dataclass(frozen=True)
class StepParts:
    """Everything that a step uses. A run keeps the same parts; only the weights inside the learner change."""

    task: Task
    scorer: Scorer
    engine: Engine
    learner: Learner
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    longest_prompt: int  # tokens
    problems_per_step: int  # P
    group_size: int  # G
    order: ProblemOrder  # which problems come next
    opened: Callable[[Problem], Problem] | None = None  # what an environment adds to a problem; None = there is none


def grpo_step(
    parts: StepParts, step: int, rates: PassRates, *, on_finished: Callable[[int], None] | None = None
) -> StepRecord:
    """Samples a batch of groups, scores them, and updates the weights in `parts.learner`.

    Args:
        step: 1, 2, ...; with the run's seed it determines the problems and every random number.
        rates: pass rate of each problem in earlier steps, for the curriculum.
        on_finished: gets the number of completions that just finished while the engine samples.
    """
    learner, engine, tokenizer = parts.learner, parts.engine, parts.tokenizer
    group_filter, train = learner.algorithm.group_filter, parts.task.problems("train")
    clock = Clock("rollout", "reward", "reference", "learn")
    parts.scorer.begin_step(step)
    # Sample G completions of each of P problems from the current policy, and score each completion. Groups of further
    # problems may replace those that the filter drops (DAPO's dynamic sampling).
    groups, outcomes = list[Group](), list[tuple[RewardOutcome, ...]]()
    visits = parts.order.visits(train, step=step, rates=rates)
    problems = len(visits)
    for refill in range(1, group_filter.refills + 2):
        scoring = Scoring(parts.scorer, tokenizer)
        with clock("rollout"):  # workers score a group while the engine samples the others
            group_requests = make_requests(
                visits,
                tokenizer,
                completions=parts.group_size,
                longest_prompt=parts.longest_prompt,
                opened=parts.opened,
            )
            groups += engine.generate(group_requests, parts.sampling, on_finished=on_finished, on_group=scoring.begin)
        with clock("reward"):
            outcomes += scoring.finish()
        is_kept_P = group_filter.kept([[outcome.earned for outcome in group] for group in outcomes])
        missing = problems - sum(is_kept_P)
        if not missing or refill > group_filter.refills:
            break
        visits = parts.order.refill(train, missing, step=step, round_=refill, rates=rates, visited=len(groups))
    batch = ScoredGroups(step, groups, outcomes, is_kept_P, parts.scorer.weights, parts.sampling)
    updates = update_policy(learner, batch, clock)
    engine.load_weights(learner.optimizer.updates)  # the engine samples the next step from the new weights
    trace = trace_updates(learner.algorithm, updates)
    metrics = step_metrics(parts.task, groups, outcomes, verified=parts.scorer.verifier is not None)
    metrics |= {} if learner.algorithm.distill is None else correct_without_work_share(parts.task, groups, outcomes)
    metrics |= {**parts.scorer.logged(), **parts.scorer.usage(), **updates.metrics}
    metrics |= {
        **token_ledger(groups, outcomes, is_kept_P, trace.unused),
        **clock.metrics(metrics["completion_tokens"]),
    }
    advantages, traces = token_record(groups, is_kept_P, trace.tokens)
    return StepRecord(step, metrics, groups, outcomes, advantages, traces, is_kept_P, trace.stages)


def update_policy(learner: Learner, scored: ScoredGroups, clock: Clock) -> BatchUpdates:
    """Learns from scored groups, which a step sampled or a record holds; nothing when the filter kept none."""
    algorithm, result = learner.algorithm, BatchUpdates({})
    groups, outcomes = list(compress(scored.groups, scored.kept)), list(compress(scored.outcomes, scored.kept))
    if groups:
        batch = make_batch(groups, scored.sampling, mask_overlong=algorithm.group_filter.mask_overlong)
        for term in learner.terms:
            batch = term.with_inputs(batch, groups, outcomes)
        # Log-probs under the frozen reference, for the KL; values, for algorithms with a critic.
        with clock("reference"):
            before = learner.evaluate(batch)
        # Advantages relative to the group, in GRPO (reward - mean) / deviation: this baseline replaces the critic.
        rewards_N = [outcome for group in outcomes for outcome in group]
        credit = assign_credit(rewards_N, scored.weights, batch, before, algorithm, kl_coef=learner.kl_coef)
        # Updates maximize the clipped ratio of new to old policy, times the advantage, minus the KL to the reference:
        # equation 3, in `grouprl.learner.terms.PolicyTerm`.
        with clock("learn"):
            result = learner.learn(batch, credit, before, step=scored.step)
    if algorithm.refreshes_reference(scored.step):
        learner.refresh_reference()
    return result
