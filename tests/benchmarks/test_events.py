"""The event model of a cluster by hand, and beside a simulation of every decode step."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # its files import each other by their names

from events import Cluster, Costs, DecodeRates, completion_ends, shares_idle, simulate, span

SECOND = Costs(DecodeRates(fixed=1.0))  # a decode step; reading a prompt draws the first token at no cost


def test_two_samplers_with_jobs_of_three_two_and_one_seconds() -> None:
    """Of 3 jobs the last is given first: 1 s and 2 s begin, 3 s follows the shorter one."""
    (step,) = simulate(SECOND, Cluster(2, 1, max_rows=1), [[(4,), (3,), (2,)]])
    assert (step.sampled, step.ended, step.staleness) == (4.0, 4.0, 0)
    assert step.sampler_seconds == 6.0
    # Two groups a sampler, together in its rows: 3 s.
    (step,) = simulate(SECOND, Cluster(2, 1), [[(4,), (3,), (2,)]])
    assert (step.sampled, step.sampler_seconds) == (3.0, 3.0 + 2.0)
    # Nine of ten end after 1 s, one after 100 s.
    (step,) = simulate(SECOND, Cluster(1, 1), [[(2,) * 9 + (101,)]])
    assert step.tail == 99.0


def test_scorers_begin_with_what_is_there() -> None:
    """Jobs end at 1 and 5 s; each group takes 3 s to score: one scorer ends at 8 s, not at 11 s."""
    costs = Costs(DecodeRates(fixed=1.0), score=3.0, learn=2.0)
    (step,) = simulate(costs, Cluster(2, 1), [[(2,), (6,)]])
    assert (step.sampled, step.scored, step.ended) == (5.0, 8.0, 10.0)
    # Four groups that are there at once: two scorers need two rounds.
    (step,) = simulate(costs, Cluster(1, 2), [[(2,)] * 4])
    assert (step.sampled, step.scored, step.scorer_seconds) == (1.0, 7.0, 12.0)


@pytest.mark.parametrize(("sampling", "learning"), [(4, 7), (7, 4)])
def test_a_step_that_is_sampled_ahead_takes_the_longer_of_both(sampling: int, learning: int) -> None:
    costs = Costs(DecodeRates(fixed=1.0), publish=0.5, learn=float(learning))
    groups = [[(sampling + 1,)]] * 6
    waiting = simulate(costs, Cluster(1, 1), groups)
    ahead = simulate(costs, Cluster(1, 1, max_staleness=1), groups)
    assert [step.seconds for step in waiting] == [0.5 + sampling + learning] * 6
    # What is published, and then learned from, is one after the other in one process.
    assert [step.seconds for step in ahead[2:-1]] == [max(sampling, 0.5 + learning)] * 3
    assert [step.staleness for step in ahead] == [0, 1, 1, 1, 1, 1]
    idle = shares_idle(waiting, Cluster(1, 1), costs)
    total = 0.5 + sampling + learning
    assert idle == pytest.approx((1 - sampling / total, sampling / total))


def test_weights_are_pulled_once_a_version_and_answers_are_received_one_by_one() -> None:
    costs = Costs(DecodeRates(fixed=1.0), pull=2.0, receive_token=0.25)
    (step,) = simulate(costs, Cluster(1, 1, max_rows=1), [[(2,), (2,)]])
    assert step.worked == 2.0 + 1.0 + 1.0
    assert step.sampled == step.worked + 0.25 * 2
    (step,) = simulate(costs, Cluster(2, 1, max_rows=1), [[(2,), (2,)]])
    assert (step.worked, step.sampled) == (3.0, 3.0 + 0.25 * 4)


def decoded_slowly(rates: DecodeRates, groups: list[tuple[int, ...]], max_rows: int) -> list[float]:
    """Each decode step of each row, one after the other; no completion has a single token."""
    waiting, left, clock, ends = list(groups), list[int](), 0.0, list[float]()
    rows = min(max_rows, sum(map(len, groups)))
    while waiting or left:
        free = rows - len(left)
        if free >= 0.25 * rows:
            while waiting and len(waiting[0]) <= rows - len(left):
                clock += rates.prompt
                left += [length - 1 for length in waiting.pop(0)]
        clock += max(rates.fixed, rates.product * len(left)) + rates.row * len(left)
        left = [tokens - 1 for tokens in left]
        ends += [clock] * left.count(0)
        left = [tokens for tokens in left if tokens]
    return ends


def test_rows_leave_and_groups_enter_as_in_a_simulation_of_each_decode_step() -> None:
    chance = random.Random(0)
    for _ in range(30):
        rates = DecodeRates(chance.random(), chance.random(), 0.0, chance.random() / 3, chance.random())
        groups = [tuple(chance.randint(2, 9) for _ in range(4)) for _ in range(chance.randint(1, 9))]
        found = completion_ends(rates, groups, 12)
        assert found == pytest.approx(decoded_slowly(rates, groups, 12))


def test_steps_that_read_a_growing_cache() -> None:
    """3 rows and 10 cached tokens: reads of 1 + 0.1 * (10 + 3 t) = 2, 2.3, 2.6, 2.9, products of 2.5, and 3 * 0.01."""
    rates = DecodeRates(fixed=1.0, context=0.1, product=2.5 / 3, row=0.01)
    assert span(rates, 3, 10, 4) == pytest.approx(2.5 + 2.5 + 2.6 + 2.9 + 4 * 0.03)
    assert span(rates, 3, 10, 1) == pytest.approx(2.53)
