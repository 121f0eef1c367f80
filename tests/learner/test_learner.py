"""The learner: its gradient is that of plain padded rows, whatever the packs, and its log-probs are the sampler's."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms import policy_loss, token_weights
from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.learner import Optimizer, make_batch, trace_updates
from grouprl.models.load import fingerprint, frozen_copy
from grouprl.types import Batch, Group, Sampling
from learner_setting import (
    ADVANTAGES,
    batch_of,
    credit_of,
    gap,
    learn,
    learner_of,
    loaded,
    other_reference,
    sampled,
)
from plain_learning import ALGORITHMS, moved, named, padded_logprobs, plain_gradient
from variants import variant

# The gradient


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=named)
def test_the_gradient_is_that_of_padded_rows(tiny: Path, groups: list[Group], algorithm: Algorithm):
    model = loaded(tiny)
    batch = moved(batch_of(groups))
    expected = plain_gradient(tiny, model, batch, algorithm)
    learner = learner_of(model, algorithm, micro_batch_tokens=45)
    learn(learner, batch)
    assert gap(learner.optimizer.gradient, expected) < 2e-5


def loss_by_hand_and_learned(
    tiny: Path, batch: Batch, logprobs: Tensor, reference: Tensor, options: dict[str, Any]
) -> tuple[float, float]:
    """Of an algorithm with these options, from padded log-probs and from the learner."""
    chosen = {"kl_coef": 0.1, **options}
    expected, _ = policy_loss(
        logprobs, batch.old_logprobs_NT, ADVANTAGES, token_weights(batch.mask_NT), ref_logprobs_NT=reference, **chosen
    )
    figures = learn(learner_of(loaded(tiny), variant(**chosen, passes=2), micro_batch_tokens=45), batch)
    return float(expected), figures["loss"]


@pytest.fixture(scope="module")
def padded(tiny: Path, groups: list[Group]) -> tuple[Batch, Tensor, Tensor]:
    """A batch with padded log-probs of policy and reference."""
    model, batch = loaded(tiny), moved(batch_of(groups))
    return batch, padded_logprobs(model, tiny, batch), padded_logprobs(other_reference(model), tiny, batch)


@pytest.fixture(scope="module")
def usual(tiny: Path, padded: tuple[Batch, Tensor, Tensor]) -> float:
    expected, loss = loss_by_hand_and_learned(tiny, *padded, {})
    assert loss == pytest.approx(expected, abs=1e-5)
    return loss


@pytest.mark.parametrize(
    "options",
    [
        {"surrogate": "plain"}, {"surrogate": "cispo"}, {"ratio": "sequence"}, {"clip_low": 0.05},
        {"clip_high": 0.05}, {"kl": "k1"}, {"kl_coef": 0.9}, {"dual_clip": 1.05},
    ],
    ids=str,
)  # fmt: skip
def test_every_field_of_the_algorithm_reaches_the_loss(
    tiny: Path, padded: tuple[Batch, Tensor, Tensor], usual: float, options: dict[str, Any]
):
    expected, loss = loss_by_hand_and_learned(tiny, *padded, options)
    assert loss == pytest.approx(expected, abs=1e-5)
    assert abs(usual - loss) > 1e-3


@pytest.mark.parametrize(
    "algorithm", [variant(kl_coef=0.3, passes=2), variant(kl_coef=0.0, passes=2, ratio="sequence")], ids=named
)
def test_no_division_into_packs_changes_gradient_or_figures(tiny: Path, groups: list[Group], algorithm: Algorithm):
    model = loaded(tiny).double()
    batch = moved(batch_of(groups))
    whole = learner_of(model, algorithm)
    expected = learn(whole, batch)
    for budget in (1, 33, 60):
        learner = learner_of(model, algorithm, micro_batch_tokens=budget)
        figures = learn(learner, batch)
        assert gap(learner.optimizer.gradient, whole.optimizer.gradient) < 1e-6
        for name in expected:
            if not name.startswith("time/"):
                assert figures[name] == pytest.approx(expected[name], abs=1e-5), name


# Sampler and learner


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=12, temperature=1.4, top_k=20, min_p=0.05),
        Sampling(max_tokens=12, temperature=1.1, top_p=0.95, repetition_penalty=1.3),
    ],
    ids=str,
)
def test_the_learner_finds_the_log_probs_of_the_sampler(tiny: Path, sampling: Sampling):
    batch = make_batch(sampled(tiny, sampling), sampling)
    assert batch.old_logprobs_NT[batch.mask_NT].min() < -0.5
    for budget in (1, 10**6):
        figures = learn(learner_of(loaded(tiny), micro_batch_tokens=budget), batch)
        assert figures["sampler_learner_gap"] < 1e-5
        assert figures["ratio_max"] == pytest.approx(1, abs=2e-5)


# Passes and the reference


def adamw(model: PreTrainedModel) -> Optimizer:
    return Optimizer(model, LearnerConfig(learning_rate=0.01))


def mean_ratio(model: PreTrainedModel, tiny: Path, batch: Batch, advantages_N: Tensor) -> float:
    """Over the tokens of the completions with an advantage."""
    ratios = (padded_logprobs(model, tiny, batch) - batch.old_logprobs_NT).exp()
    counted = batch.mask_NT & (advantages_N != 0)[:, None]
    return float(ratios[counted].mean())


def test_later_passes_compare_with_the_sampler_and_a_single_one_with_itself(tiny: Path, groups: list[Group]):
    batch = batch_of(groups)
    once, twice = loaded(tiny), loaded(tiny)
    single = learner_of(once, optimizer=adamw(once))
    assert learn(single, batch)["ratio_mean"] == 1
    between = mean_ratio(once, tiny, batch, ADVANTAGES)
    assert abs(between - 1) > 1e-3
    figures = learn(learner_of(twice, variant(passes=2), optimizer=adamw(twice)), batch)
    assert figures["ratio_mean"] == pytest.approx(between, abs=1e-3)
    assert figures["sampler_learner_gap"] < 1e-5  # of the first pass: later ones have moved on purpose
    assert learn(single, batch)["ratio_mean"] == 1  # the only update of this batch, whatever sampled it


@pytest.mark.parametrize("changes", [{}, {"kl_coef": 0.0, "ratio": "sequence"}, {"correction": "truncate"}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_ratio_of_a_single_update_is_exactly_1(
    tiny: Path, groups: list[Group], dtype: str, changes: dict[str, Any]
):
    """Whatever the sampler rounds or claims: nothing is clipped, and the record has the log-probs of the ratio."""
    batch = moved(batch_of(groups))
    learner = learner_of(loaded(tiny), variant(**changes), dtype=dtype, micro_batch_tokens=45)
    before = learner.evaluate(batch)
    result = learner.learn(batch, credit_of(batch), before, step=2)
    found = [result.metrics[name] for name in ("ratio_mean", "ratio_max", "clip_low_fraction", "clip_high_fraction")]
    assert found == [1, 1, 0, 0]
    assert not trace_updates(learner.algorithm, result).unused["clipped"].any()
    assert all(trace.old == trace.logprobs for _, trace in trace_updates(learner.algorithm, result).tokens)
    assert (before.policy_NT is None) == ("correction" not in changes)  # no further pass


def test_old_log_probs_of_several_updates_are_the_learners_where_it_rounds(tiny: Path, groups: list[Group]):
    """A sampler that is off by up to half a nat: in bfloat16, and beside another program, the learner reads first."""
    batch = moved(batch_of(groups))
    other = replace(batch, sampling=replace(batch.sampling, sampled_in_process=False))
    for dtype, given, own in (("float32", batch, False), ("bfloat16", batch, True), ("float32", other, True)):
        learner = learner_of(loaded(tiny), variant(kl_coef=0.0, passes=2), dtype=dtype)
        before = learner.evaluate(given)
        result = learner.learn(given, credit_of(given), before, step=2)
        assert (before.policy_NT is not None) == own
        assert abs(result.metrics["ratio_max"] - 1) < 0.1 if own else result.metrics["ratio_max"] > 1.3
        if own:
            assert before.policy_NT is not None
            row = before.policy_NT[0][given.mask_NT[0]].tolist()
            assert list(trace_updates(learner.algorithm, result).tokens[0][1].old or ()) == row
        else:
            assert trace_updates(learner.algorithm, result).tokens[0][1].old is None


@pytest.mark.parametrize("budget", [30, 10**6])
def test_the_mean_gap_has_a_sign(tiny: Path, groups: list[Group], budget: int):
    """A sampler whose log-probs are 0.3 nats too low everywhere, and noise without a direction."""
    batch = batch_of(groups)
    low = replace(batch, old_logprobs_NT=(batch.old_logprobs_NT - 0.3) * batch.mask_NT)
    figures = learn(learner_of(loaded(tiny), micro_batch_tokens=budget), low)
    assert figures["sampler_learner_gap_mean"] == pytest.approx(0.3, abs=1e-5)
    assert figures["sampler_learner_gap"] == pytest.approx(0.3, abs=1e-4)


def test_the_kl_is_zero_until_the_policy_moves(tiny: Path, groups: list[Group]):
    model = loaded(tiny).double()  # the two read other rows; only the rounding of logits is left
    batch, algorithm = batch_of(groups), variant(kl_coef=0.5)
    keeper = learner_of(model, algorithm, reference=frozen_copy(model))
    assert learn(keeper, batch)["kl"] == pytest.approx(0, abs=1e-9)
    without = learner_of(model, variant(kl_coef=0.0))
    learn(without, batch)
    assert gap(keeper.optimizer.gradient, without.optimizer.gradient) < 1e-6
    learner = learner_of(model, algorithm, reference=frozen_copy(model), optimizer=adamw(model))
    learn(learner, batch)
    assert learn(learner, batch)["kl"] > 1e-5


def test_a_gradient_that_is_not_finite_makes_no_update(tiny: Path, groups: list[Group]):
    model = loaded(tiny)
    before = fingerprint(model)
    learner = learner_of(model, optimizer=Optimizer(model, LearnerConfig(learning_rate=0.1)))
    figures = learn(learner, batch_of(groups), ADVANTAGES * math.inf)
    assert (fingerprint(model), learner.optimizer.updates) == (before, 0)
    assert figures["skipped_updates"] == 1
    assert math.isnan(figures["grad_norm"])
    assert math.isfinite(learner.kl_coef)
