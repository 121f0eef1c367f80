"""Samplers on a simulated learner: how many groups have signal, and what comes of it. No model, no text.

    python benchmarks/curriculum.py [--seeds 3]

Each problem is a coin: completions are correct with a probability whose logit is drawn from a normal distribution. A
group moves the logit of its own problem by `own` and that of every problem by `transfer / P`, both times
2 sqrt(q (1 - q)), where q is the share of its completions that are correct: the size of a normalized advantage, and
nothing for a group without signal. So the simulation takes for granted that signal is what teaches, that problems do
not wear out by repetition, and that none teaches more than another: it compares ways of finding signal, and cannot say
what they are worth on a real task.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass

import numpy as np

from grouprl.tasks.curriculum import PRIOR, EdgeOrder, PassRates, ProblemOrder, UniformOrder, update
from grouprl.types import Problem

P, G, STEPS = 16, 8, 200


@dataclass(frozen=True)
class World:
    name: str
    problems: int
    center: float  # of the logits
    spread: float
    own: float
    transfer: float


WORLDS = (
    World("few problems, most too hard", 400, center=-3, spread=4, own=0.6, transfer=0.5),
    World("few problems that help each other", 400, center=-6, spread=3, own=0.02, transfer=1.6),
    World("more problems than visits", 20_000, center=-3, spread=4, own=0.6, transfer=0.5),
)


def simulate(world: World, order: ProblemOrder, half_life: float, seed: int, *, steps: int) -> list[float]:
    """Share of groups with signal in each quarter and in all, mean pass rate of all problems at the end, and seen."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(world.center, world.spread, world.problems)
    train = [Problem(str(number), "") for number in range(world.problems)]
    rates, signal = PassRates(), np.zeros(steps)
    for step in range(1, steps + 1):
        visited = [int(problem.id) for problem, _ in order.visits(train, step=step, rates=rates)]
        correct = rng.binomial(G, 1 / (1 + np.exp(-logits[visited])))
        moved = 2 * np.sqrt(correct / G * (1 - correct / G))
        signal[step - 1] = (moved > 0).mean()
        np.add.at(logits, visited, world.own * moved)
        logits += world.transfer * moved.mean() / P
        found = [(str(place), int(right), G - int(right)) for place, right in zip(visited, correct, strict=True)]
        rates = update(rates, found, half_life=half_life)
    quarters = signal.reshape(4, -1).mean(1)
    return [*quarters, signal.mean(), (1 / (1 + np.exp(-logits))).mean(), len(rates)]


def variants(seed: int) -> dict[str, tuple[ProblemOrder, float]]:
    edge = EdgeOrder(P, seed, G)
    return {
        "uniform": (UniformOrder(P, seed), 1.0),
        "edge (the defaults)": (edge, 1.0),
        **{f"edge, half-life {value:g}": (edge, value) for value in (0.5, 2.0, 4.0, 1e9)},
        **{f"edge, sharpness {value:g}": (EdgeOrder(P, seed, G, sharpness=value), 1.0) for value in (0.0, 1.0, 4.0)},
        **{f"edge, floor {value:g}": (EdgeOrder(P, seed, G, floor=value), 1.0) for value in (0.1, 0.5)},
    }


# Group size by problem (VIP, arXiv:2602.01601): is there anything to gain from what the pass rates know?

SMALLEST, LARGEST = 2, 32
POPULATIONS = {"solved or hopeless": (0.5, 0.5), "mostly too hard": (0.3, 2.0), "in between": (2.0, 2.0)}
VISITS = (0, 1, 2, 5)


def group_sizes(spread_P: np.ndarray, budget: int) -> np.ndarray:
    """[P] sizes that sum to the budget and minimize the sum of spread / (size - 1).

    That is the variance of the leave-one-out gradient of right or wrong completions, if scores of all completions are
    alike and `spread` is p (1 - p). Convex and separable: it is best to give each completion to where it helps most.
    """
    sizes_P = np.full(len(spread_P), SMALLEST)
    gains = [(-spread / (SMALLEST * (SMALLEST - 1)), place) for place, spread in enumerate(spread_P)]
    heapq.heapify(gains)
    for _ in range(budget - sizes_P.sum()):
        _, place = heapq.heappop(gains)
        sizes_P[place] += 1
        if (size := sizes_P[place]) < LARGEST:
            heapq.heappush(gains, (-spread_P[place] / (size * (size - 1)), place))
    return sizes_P


def variance_ratio(population: tuple[float, float], visits: int | None, *, steps: int) -> float:
    """Variance of a step's gradient with sizes by problem over that with equal sizes; visits None = p is known."""
    rng, by_problem, equal = np.random.default_rng(0), 0.0, 0.0
    for _ in range(steps):
        rates_P = rng.beta(*population, P)
        right_P = wrong_P = np.zeros(P)
        for _ in range(visits or 0):
            drawn_P = rng.binomial(G, rates_P)
            right_P, wrong_P = right_P / 2 + drawn_P, wrong_P / 2 + G - drawn_P
        a_P, b_P = right_P + PRIOR, wrong_P + PRIOR
        true_P = rates_P * (1 - rates_P)
        spread_P = true_P if visits is None else a_P * b_P / ((a_P + b_P) * (a_P + b_P + 1))  # E[p (1 - p)]
        by_problem += float((true_P / (group_sizes(spread_P, P * G) - 1)).sum())
        equal += float(true_P.sum()) / (G - 1)
    return by_problem / equal


def print_sizes(steps: int) -> None:
    print(f"\nGroup size by problem, {SMALLEST} to {LARGEST}, {P * G} completions: variance over that of equal sizes\n")
    print(f"| pass rates | {' | '.join(f'{visits} visits before' for visits in VISITS)} | known |")
    print("|---" * (len(VISITS) + 2) + "|")
    for name, beta in POPULATIONS.items():
        ratios = [variance_ratio(beta, visits, steps=steps) for visits in (*VISITS, None)]
        print(f"| {name}, Beta{beta} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="one world, four steps, one seed: whether it runs")
    given = parser.parse_args()
    seeds, steps, worlds = (1, 4, WORLDS[:1]) if given.smoke else (given.seeds, STEPS, WORLDS)
    print(f"{steps} steps of {P} problems x {G} completions, mean of {seeds} seeds")
    for world in worlds:
        print(f"\n{world}\n")
        print("| order | signal, by quarter of the run | all | pass rate at the end | problems seen |")
        print("|---|---|---|---|---|")
        for name in variants(0):
            rows = [simulate(world, *variants(seed)[name], seed, steps=steps) for seed in range(seeds)]
            *quarters, signal, rate, seen = np.mean(rows, 0)
            shares = ", ".join(f"{100 * share:.0f}" for share in quarters)
            print(f"| {name} | {shares} % | {100 * signal:.0f} % | {100 * rate:.0f} % | {seen:.0f} |")
    print_sizes(2 * steps)


if __name__ == "__main__":
    main()
