"""Packs that run side by side: the same gradient, to the bit, for any number of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grouprl.algorithms.named import NAMED
from grouprl.config.algorithm import with_options
from grouprl.forward.workers import side_by_side, worker_count
from grouprl.learner.gradients import _add_in_a_tree
from grouprl.ranks import Ranks
from grouprl.terms.critic import Critic
from learner_setting import SAMPLING, GradientKeeper, batch_of, credit_of, learner_of, loaded, sampled


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_jobs():
    torch.set_num_threads(3)
    jobs = [lambda place=place: (time.sleep(0.02 * (place % 3)), place)[1] for place in range(9)]
    assert list(side_by_side(jobs, 3)) == list(range(9))
    assert torch.get_num_threads() == 3


def test_jobs_run_at_once_on_one_thread_each_and_few_run_ahead():
    torch.set_num_threads(2)
    both, started = threading.Barrier(2, timeout=10), []

    def job(place: int) -> int:
        started.append(place)
        if place < 2:
            both.wait()  # passes only when two jobs run at once
        return torch.get_num_threads()

    results = side_by_side([lambda place=place: job(place) for place in range(6)], 2)
    assert next(results) == 1
    time.sleep(0.1)
    assert len(started) <= 4
    assert list(results) == [1] * 5


def test_an_error_comes_in_its_place_and_ends_the_rest():
    torch.set_num_threads(2)
    ran = []

    def job(place: int) -> int:
        ran.append(place)
        if place == 1:
            raise ValueError("pack 1")
        return place

    results = side_by_side([lambda place=place: job(place) for place in range(50)], 2)
    assert next(results) == 0
    with pytest.raises(ValueError, match="pack 1"):
        list(results)
    assert len(ran) < 10
    assert torch.get_num_threads() == 2


def test_a_large_model_runs_its_packs_one_after_the_other():
    torch.set_num_threads(4)
    small, large = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    large.weight = torch.nn.Parameter(torch.zeros(1).expand(1 << 14, 1 << 14))  # as many weights, without their memory
    assert [worker_count(small, parts) for parts in (0, 3, 9)] == [1, 3, 4]
    assert worker_count(large, 9) == 0  # threads inside its operations
    large.weight = torch.nn.Parameter(torch.zeros(1).expand(1 << 14, 1 << 13))  # SmolLM2-135M has about as many
    assert worker_count(large, 9) == 4
    large.weight = torch.nn.Parameter(torch.zeros(1).expand(1 << 14, 10_000))
    assert worker_count(large, 9) == 0
    assert [worker_count(large, parts, sampling=True) for parts in (3, 4, 9)] == [0, 4, 4]  # all threads, or none


@pytest.mark.parametrize("critic", [None, "copy"])
def test_any_number_of_threads_gives_the_same_gradients_and_metrics(tiny: Path, critic: str | None):
    batch = batch_of(sampled(tiny, SAMPLING))
    returns_NT = torch.where(batch.mask_NT, 0.7, 0.0)
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        model = loaded(tiny)
        algorithm = with_options(NAMED["grpo" if critic is None else "ppo"], {"critic": critic} if critic else {})
        values = None if critic is None else Critic(model, shared=critic == "shared")
        keeper = None if values is None else GradientKeeper(values)
        learner = learner_of(model, algorithm, micro_batch_tokens=24, critic=values, critic_optimizer=keeper)
        credit = replace(credit_of(batch), returns_NT=returns_NT, counted_NT=batch.mask_NT)
        metrics = learner.learn(batch, credit, learner.evaluate(batch), step=2).metrics
        found.append((metrics, learner.optimizer.gradient, keeper.gradient if keeper else {}))
        assert worker_count(model, 9) == count
    for metrics, *gradients in found[1:]:
        assert metrics == pytest.approx(found[0][0], abs=0, rel=0, nan_ok=True)
        for got, expected in zip(gradients, found[0][1:], strict=True):
            assert got.keys() == expected.keys()
            assert all(torch.equal(gradient, expected[name]) for name, gradient in got.items())


def test_the_tree_adds_each_loss_once_and_gives_results_by_place():
    """The gradients of three losses are 1, 2 and 4 by hand; they come in shards whose order is another one."""
    weight = torch.nn.Parameter(torch.zeros(1))
    losses = [lambda size=size: (size * weight.sum(), size) for size in (1.0, 2.0, 4.0)]
    found = _add_in_a_tree(losses, ((2, 0), (1,)), [weight], 0, Ranks())
    assert weight.grad is not None
    assert weight.grad.tolist() == [7.0]
    assert list(found.items()) == [(0, 1.0), (1, 2.0), (2, 4.0)]
