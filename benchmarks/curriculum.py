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
from dataclasses import dataclass

import numpy as np

from grouprl.tasks.curriculum import EdgeOrder, PassRates, ProblemOrder, UniformOrder, update
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


if __name__ == "__main__":
    main()
