"""Pass rates against binomial sums and quadrature; problem orders against enumeration, windows and a watched list."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.record.queries import recorded_verdicts
from grouprl.record.read import read_run
from grouprl.record.write import RunRecord
from grouprl.tasks.curriculum import (
    EdgeOrder,
    PassRates,
    ProblemOrder,
    UniformOrder,
    Visit,
    beta_probability,
    beta_quantile,
    curriculum_metrics,
    epoch_order,
    expected_signal,
    update,
    verdicts,
)
from grouprl.types import Group, Problem, RewardOutcome, StepRecord, UserError
from groups import group_of
from small_runs import as_killed, assert_same_run, grouprl, rollouts, small_settings

NOTHING = PassRates()


def problems(count: int) -> list[Problem]:
    return [Problem(f"p{number}", f"{number}?") for number in range(count)]


def names(visits: Sequence[Visit]) -> list[str]:
    return [problem.id for problem, _ in visits]


def counts(*pairs: tuple[float, float]) -> tuple[Any, Any]:
    rows = np.array(pairs, np.float64)
    return rows[:, 0], rows[:, 1]


def quadrature(successes: float, failures: float, of: Any) -> float:
    """E[of(p)] for p ~ Beta(successes + 1/2, failures + 1/2), where p = sin^2(t) makes the density smooth."""
    t = (np.arange(200_000) + 0.5) / 200_000 * math.pi / 2
    log_density = 2 * successes * np.log(np.sin(t)) + 2 * failures * np.log(np.cos(t))
    density = np.exp(log_density - log_density.max())
    return float((density * of(np.sin(t) ** 2)).sum() / density.sum())


# Pass rates


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 9), (3, 2), (17, 1), (20, 41), (60, 3)])
@pytest.mark.parametrize("x", [0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_the_distribution_of_a_pass_rate_is_a_sum_of_binomial_terms(a: int, b: int, x: float) -> None:
    n, p = a + b - 1, Fraction(x)  # for whole numbers P(Beta(a, b) <= x) = P(Binomial(a + b - 1, x) >= a)
    exact = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(a, n + 1))
    assert beta_probability(x, a, b) == pytest.approx(float(exact), rel=1e-10, abs=1e-15)


def test_the_arcsine_law_and_the_ends() -> None:
    assert beta_probability(0.25, 0.5, 0.5) == pytest.approx(1 / 3, rel=1e-12)  # 2/pi asin(sqrt(1/4))
    assert (beta_probability(0.0, 0.5, 8.5), beta_probability(1.0, 0.5, 8.5)) == (0.0, 1.0)
    assert beta_quantile(0.3, 1, 1) == pytest.approx(0.3, rel=1e-12)


@pytest.mark.parametrize(("successes", "failures"), [(0, 0), (8, 0), (0, 8), (3, 5), (0.25, 12), (4000, 1000)])
def test_quantiles_and_the_mean_are_those_of_the_posterior(successes: float, failures: float) -> None:
    rates = PassRates({"p": (successes, failures)})
    low, high = (beta_quantile(share, successes + 0.5, failures + 0.5) for share in (0.05, 0.95))
    assert quadrature(successes, failures, lambda p: p < low) == pytest.approx(0.05, abs=1e-4)
    assert quadrature(successes, failures, lambda p: p > high) == pytest.approx(0.05, abs=1e-4)
    assert rates.mean("p") == pytest.approx(quadrature(successes, failures, lambda p: p), rel=1e-6)
    assert low < rates.mean("p") < high


def test_only_a_visit_to_the_problem_itself_makes_it_fade_and_an_endless_half_life_counts_all() -> None:
    found = [("p", 6, 2), *[("q", 1, 1)] * 9, ("p", 0, 8)]
    assert update(NOTHING, found, half_life=1.0).counts == {"p": (3.0, 9.0), "q": pytest.approx((2.0, 2.0), abs=0.01)}
    assert update(NOTHING, found, half_life=math.inf).counts == {"p": (6.0, 10.0), "q": (9.0, 9.0)}


def test_update_does_not_change_its_argument() -> None:
    before = update(NOTHING, [("p", 1, 3)])
    after = update(before, [("p", 4, 0), ("q", 0, 4)])
    assert (dict(before.counts), len(before), len(after)) == ({"p": (1.0, 3.0)}, 1, 2)
    with pytest.raises(TypeError):
        after.counts["p"] = (0.0, 0.0)  # type: ignore[index]


GROUPS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 8), st.integers(0, 8)))


@given(GROUPS, GROUPS, st.floats(0.1, 20))
def test_steps_at_once_come_to_the_same_bits_as_one_by_one(first: Any, second: Any, half_life: float) -> None:
    apart = update(update(NOTHING, first, half_life=half_life), second, half_life=half_life)
    together = update(NOTHING, first + second, half_life=half_life)
    assert list(apart.counts.items()) == list(together.counts.items())


def judged(problem_id: str, *correct: bool | None) -> tuple[Group, tuple[RewardOutcome, ...]]:
    return group_of(Problem(problem_id, "?"), *["x"] * len(correct)), tuple(
        RewardOutcome(0.5, {}, correct=said) for said in correct
    )


JUDGED = (judged("p", True, False, True, None), judged("q", None, None), judged("p", False, False))


def test_a_completion_without_a_verdict_counts_as_neither_correct_nor_wrong() -> None:
    assert verdicts(*zip(*JUDGED, strict=True)) == [("p", 2, 1), ("q", 0, 0), ("p", 0, 2)]


def test_the_record_gives_the_verdicts_back(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "task: x\n") as record:
        for step in (1, 2, 3):
            groups, outcomes = zip(*JUDGED[:step], strict=True)
            record.step(StepRecord(step, {}, groups, outcomes, [[[0.0, 0.0] for _ in row] for row in outcomes]))
    found = [("p", 2, 1), ("p", 2, 1), ("q", 0, 0)]
    assert recorded_verdicts(tmp_path / "run", until=2) == found
    assert recorded_verdicts(tmp_path / "run", until=9) == [*found, *verdicts(*zip(*JUDGED, strict=True))]
    with pytest.raises(UserError, match="expected the rollouts of a run"):
        recorded_verdicts(tmp_path, until=2)


def test_curriculum_metrics_of_a_hand_worked_state() -> None:
    # Means: 8.5/9 = 0.944 solved, 0.5/9 = 0.056 hopeless, 4.5/9 = 0.5, and 4.5/5 = 0.9, which counts as solved.
    rates = PassRates({"a": (8, 0), "b": (0, 8), "c": (4, 4), "d": (4, 0)})
    assert curriculum_metrics(rates) == {
        "curriculum/mean_pass_rate": pytest.approx((8.5 / 9 + 0.5 / 9 + 0.5 + 0.9) / 4),
        "curriculum/edge": 1,
        "curriculum/seen": 4,
        "curriculum/solved": 2,
        "curriculum/hopeless": 1,
    }
    assert math.isnan(curriculum_metrics(NOTHING)["curriculum/mean_pass_rate"])


@pytest.mark.parametrize("group_size", [2, 8, 31])
@pytest.mark.parametrize("pair", [(0, 0), (8, 0), (0, 8), (3.5, 1), (100, 4)])
def test_expected_signal_is_the_chance_of_a_mixed_group(group_size: int, pair: tuple[float, float]) -> None:
    expected = quadrature(*pair, lambda p: 1 - p**group_size - (1 - p) ** group_size)
    assert expected_signal(*counts(pair, (1, 1)), group_size)[0] == pytest.approx(expected, rel=1e-6)


def test_expected_signal_never_rounds_to_nothing() -> None:
    assert expected_signal(*counts((1e20, 0)), 8)[0] > 0


# Orders of problems


def frozen(order: ProblemOrder, train: Sequence[Problem], steps: int) -> list[list[tuple[str, str]]]:
    visits = (order.visits(train, step=step, rates=NOTHING) for step in range(1, steps + 1))
    return [[(problem.id, stream) for problem, stream in step] for step in visits]


def test_the_uniform_order_is_the_one_it_has_always_been() -> None:
    assert frozen(UniformOrder(3, seed=5), problems(7), 4) == UNIFORM
    refill = UniformOrder(3, seed=5).refill(problems(7), 3, step=2, round_=1, rates=NOTHING, visited=3)
    assert names(refill) == ["p3", "p4", "p1"]
    assert {stream for _, stream in refill} == {"refill 2.1"}


UNIFORM = [
    [("p5", "epoch 0"), ("p2", "epoch 0"), ("p3", "epoch 0")],
    [("p1", "epoch 0"), ("p4", "epoch 0"), ("p6", "epoch 0")],
    [("p0", "epoch 0"), ("p0", "epoch 1"), ("p4", "epoch 1")],
    [("p1", "epoch 1"), ("p2", "epoch 1"), ("p6", "epoch 1")],
]


def coin(problem_id: str, step: int, group_size: int) -> tuple[str, int, int]:
    """A made-up verdict: problems are easy, hard or in between by their id."""
    rng = random.Random(f"{problem_id}/{step}")
    share = random.Random(problem_id).choice([0.0, 0.0, 0.5, 1.0])
    correct = sum(rng.random() < share for _ in range(group_size))
    return problem_id, correct, group_size - correct


def simulate(
    order: EdgeOrder, train: Sequence[Problem], steps: int, refilled: int = 0
) -> Iterator[tuple[PassRates, list[Visit]]]:
    """The pass rates before each step, and the visits chosen by them."""
    rates = NOTHING
    for step in range(1, steps + 1):
        visits = order.visits(train, step=step, rates=rates)
        for round_ in range(1, 1 + refilled):
            visits = visits + order.refill(train, 2, step=step, round_=round_, rates=rates, visited=len(visits))
        yield rates, visits
        rates = update(rates, [coin(name, step, order.group_size) for name in names(visits)])


SHAPES = [(7, 3, 0.2), (40, 16, 0.2), (16, 16, 0.05), (30, 4, 0.3), (11, 1, 0.2), (9, 5, 1.0), (28, 7, 0.2)]


@pytest.mark.parametrize(("total", "per_step", "floor"), SHAPES)
def test_the_floor_alone_visits_every_problem_in_every_window(total: int, per_step: int, floor: float) -> None:
    window = math.ceil(total / (Fraction(str(floor)) * per_step))
    order = EdgeOrder(per_step, seed=3, group_size=8, floor=floor)
    run = simulate(order, problems(total), 3 * window + 2)
    on_floor = [{p.id for p, stream in visits if stream.startswith("epoch")} for _, visits in run]
    for start in range(len(on_floor) - window + 1):
        assert len(set().union(*on_floor[start : start + window])) == total, f"steps {start + 1} to {start + window}"


@pytest.mark.parametrize("refilled", [0, 2])
@pytest.mark.parametrize(("total", "per_step", "floor"), SHAPES)
def test_no_problem_twice_in_a_step_nor_stream_in_a_run(total: int, per_step: int, floor: float, refilled: int) -> None:
    run = list(simulate(EdgeOrder(per_step, 3, 8, floor=floor), problems(total), 40, refilled))
    for _, visits in run:
        first = names(visits)[:total]  # where there are more places than problems, refills may come again
        assert len(set(first)) == len(first) == min(total, per_step + 2 * refilled)
    streams = Counter((problem.id, stream) for _, visits in run for problem, stream in visits)
    assert max(streams.values()) == 1
    order = [f"p{place}" for place in epoch_order(3, 0, total)]
    assert all(list(rates.counts) == order[: len(rates)] for rates, _ in run), "seen is a beginning of one order"


def test_visits_are_a_function_of_seed_step_and_verdicts() -> None:
    train, order = problems(60), EdgeOrder(6, 1, 4)
    run = list(simulate(order, train, 30))
    found = [
        coin(name, step, order.group_size) for step, (_, visits) in enumerate(run[:20], 1) for name in names(visits)
    ]
    assert EdgeOrder(6, 1, 4).visits(problems(60), step=21, rates=update(NOTHING, found)) == run[20][1]
    assert EdgeOrder(6, 2, 4).visits(train, step=1, rates=NOTHING) != run[0][1]
    assert len({tuple(names(order.visits(train, step=step, rates=run[20][0]))) for step in range(21, 31)}) == 10


class WatchedList(Sequence[Problem]):
    """A hundred thousand problems, each made on access, that remember which were read."""

    def __init__(self) -> None:
        self.read: set[int] = set()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, place: Any) -> Any:
        self.read.add(place)
        return Problem(f"p{place}", f"{place}?")


def test_a_huge_train_set_gives_only_the_visited_problems() -> None:
    train = WatchedList()
    visited = {name for _, visits in simulate(EdgeOrder(16, 0, 8), train, 60) for name in names(visits)}
    assert {f"p{place}" for place in train.read} == visited
    assert 200 < len(visited) < 60 * 16  # some were new, some came again


@pytest.mark.parametrize("order", [EdgeOrder(4, 0, 8), UniformOrder(4, 0)], ids=["edge", "uniform"])
def test_a_run_visits_only_problems_that_possible_names(order: ProblemOrder) -> None:
    train, rates = problems(500), NOTHING
    possible = {problem.id for problem in order.possible(train, steps=range(1, 11), refills=2)}
    for step in range(1, 11):
        visits = order.visits(train, step=step, rates=rates)
        for round_ in (1, 2):
            visits = visits + order.refill(train, 4, step=step, round_=round_, rates=rates, visited=len(visits))
        assert set(names(visits)) <= possible
        rates = update(rates, [coin(name, step, 8) for name in names(visits)])
    assert len(possible) <= 10 * 4 * 3


def test_a_refill_continues_the_draw_of_its_step() -> None:
    train, order = problems(50), EdgeOrder(6, 1, 8)
    rates = [rates for rates, _ in simulate(order, train, 20)][-1]
    refills = {
        cut: order.refill(train, cut, step=20, round_=1, rates=rates, visited=6)
        + order.refill(train, 9 - cut, step=20, round_=2, rates=rates, visited=6 + cut)
        for cut in range(1, 9)
    }
    assert all(refill == refills[1] for refill in refills.values())
    assert len({*names(order.visits(train, step=20, rates=rates)), *names(refills[1])}) == 6 + 9


def shares(visits: Iterator[list[Visit]]) -> dict[tuple[str, ...], float]:
    found = Counter(tuple(p.id for p, stream in step if stream.startswith("edge")) for step in visits)
    return {drawn: times / found.total() for drawn, times in found.items()}


@pytest.mark.parametrize("sharpness", [0.0, 2.0])
def test_draws_are_proportional_to_the_signal_without_replacement(sharpness: float) -> None:
    # Four problems, all seen; each step one is on the floor, and two of the other three are drawn.
    train = problems(4)
    pairs = {"p0": (8.0, 0.0), "p1": (0.0, 8.0), "p2": (4.0, 4.0), "p3": (7.0, 1.0)}
    rates = PassRates({train[place].id: pairs[train[place].id] for place in epoch_order(0, 0, 4)})
    weight = {name: quadrature(*pair, lambda p: 1 - p**8 - (1 - p) ** 8) ** sharpness for name, pair in pairs.items()}
    order, steps = EdgeOrder(3, 0, 8, floor=1 / 3, sharpness=sharpness), 1_200
    found = shares(order.visits(train, step=step, rates=rates) for step in range(10, 10 + steps))
    for first, second in itertools.permutations(pairs, 2):
        expected = 0.0
        for floor in pairs.keys() - {first, second}:
            left = sum(weight.values()) - weight[floor]
            expected += weight[first] / left * weight[second] / (left - weight[first]) / 4
        assert found.get((first, second), 0.0) == pytest.approx(expected, abs=4 * math.sqrt(expected / steps))


def test_new_problems_have_the_prior_as_weight_and_at_most_as_many_as_were_seen_are_drawn() -> None:
    # Four were seen, rank 0 at the edge and the others hopeless. Of the three places of step 2 one is on the floor
    # (rank 1), and two are drawn from ranks 0, 2, 3 and as many new ones as were seen: four of ninety-six.
    edge, hopeless, new = (
        quadrature(*pair, lambda p: 1 - p**8 - (1 - p) ** 8) ** 2 for pair in ((4, 4), (0, 8), (0, 0))
    )
    weights, train = [edge, hopeless, hopeless, new, new, new, new], problems(100)
    expected: Counter[tuple[str, ...]] = Counter()
    kinds = ["edge", "hopeless", "hopeless", "new", "new", "new", "new"]
    for first, second in itertools.permutations(range(7), 2):
        chance = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        expected[kinds[first], kinds[second]] += chance
    found, runs = Counter[tuple[str, ...]](), 1500
    for seed in range(runs):
        ids = [train[place].id for place in epoch_order(seed, 0, 100)[:4]]
        rates = PassRates({name: (4.0, 4.0) if rank == 0 else (0.0, 8.0) for rank, name in enumerate(ids)})
        floor, *drawn = names(EdgeOrder(3, seed, 8, floor=1 / 3).visits(train, step=2, rates=rates))
        assert floor == ids[1]
        found[tuple({ids[0]: "edge", ids[2]: "hopeless", ids[3]: "hopeless"}.get(name, "new") for name in drawn)] += 1
    for pair, chance in expected.items():
        assert found[pair] / runs == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / runs)), pair


def test_too_few_problems_and_foreign_pass_rates_are_refused() -> None:
    with pytest.raises(UserError, match=r"problems_per_step: expected at most 7, .* got 8"):
        EdgeOrder(8, 0, 8).visits(problems(7), step=1, rates=NOTHING)
    with pytest.raises(ValueError, match="expected the pass rates of all steps before 9, got those of 0 problems"):
        EdgeOrder(4, 0, 8).visits(problems(7), step=9, rates=NOTHING)
    another = PassRates({f"other{number}": (4, 4) for number in range(7)})
    with pytest.raises(ValueError, match=r"expected p\d as number \d of the pass rates, got other\d"):
        EdgeOrder(4, 0, 8).visits(problems(7), step=9, rates=another)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("group_size", {"group_size": 1}), ("floor", {"floor": 0.0}), ("floor", {"floor": 1.1})]
    + [("sharpness", {"sharpness": value}) for value in (-1.0, 17.0, math.nan)],
)
def test_settings_out_of_range_are_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"{name}: expected .*, got .*: change it"):
        EdgeOrder(**{"problems_per_step": 4, "seed": 0, "group_size": 8, **settings})


@pytest.mark.slow
def test_a_resumed_run_visits_the_same_problems_as_a_whole_one(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path,
        task={"name": "word_problems", "train_problems": 12},
        rollout={
            "problems_per_step": 4,
            "group_size": 3,
            "max_tokens": 32,
            "curriculum": {"order": "edge", "floor": 0.3},
        },
        learner={"learning_rate": 0.001},
        algorithm="dapo",  # drops groups without signal, and refills
        evaluation={"problems": 1, "samples": 0},
        checkpoint={"every": 2, "keep": 2},
        steps=4,
    )
    assert grouprl("train", *settings, "--name", "whole").code == 0
    as_killed(tmp_path / "whole", tmp_path / "broken", after=2)
    assert grouprl("train", "--resume", "--name", "broken", f"runs_dir={tmp_path}").code == 0
    assert_same_run(tmp_path / "whole", tmp_path / "broken", 4)
    last = read_run(tmp_path / "whole").metrics[-1]
    known = update(NOTHING, recorded_verdicts(tmp_path / "whole", until=4))
    assert {name: value for name, value in last.items() if name.startswith("curriculum/")} == curriculum_metrics(known)
    assert last["curriculum/seen"] > 4
    groups = rollouts(tmp_path / "whole", "SELECT step, COUNT(*), COUNT(DISTINCT problem_id) FROM groups GROUP BY step")
    assert all(different == min(count, 12) for _, count, different in groups)
    assert max(count for _, count, _ in groups) > 4  # there were refills
