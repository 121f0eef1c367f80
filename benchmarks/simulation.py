"""Simulates steps on up to 4,096 samplers, and compares the simulation with real runs on 1, 2 and 4.

    python benchmarks/simulation.py --check          real runs beside their simulation (a quarter of an hour)
    python benchmarks/simulation.py --run runs/demo  what 16 to 4,096 samplers would do, with a run's lengths

`--check` fits its rates on one sampler and one scorer without staleness, and predicts the other layouts from them
(`paced.py`). The large clusters have the rates of data sheets, `RATES` (`events.py`). Nothing of
them was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from events import Cluster, Costs, DecodeRates, Group, Step, shares_idle, simulate
from paced import SCENARIOS, WARM, Scenario, fit, run
from rich.console import Console
from rich.table import Table

from grouprl.record.read import read_rollouts, read_run
from grouprl.tools.planner import GRPO, SHAPES, ModelShape, StepShape
from grouprl.tools.planner.layouts import GPUS
from grouprl.tools.planner.machine import Rates
from grouprl.tools.planner.time import floor_of_step

CHECKED = {
    "sampling": ((1, 1, 0), (2, 1, 0), (4, 1, 0), (1, 1, 1), (2, 1, 1), (4, 1, 1)),
    "scoring": ((1, 1, 0), (2, 2, 0), (4, 4, 0), (1, 1, 1), (2, 2, 1), (4, 4, 1)),
}


@dataclass(frozen=True)
class Checked:
    """A real run beside its simulation: the median of its steps."""

    scenario: str
    cluster: Cluster
    fitted: bool  # the rates come from this run
    measured: float  # seconds
    simulated: float
    staleness: float
    simulated_staleness: float

    @property
    def error(self) -> float:
        """Of the simulation, relative."""
        return self.simulated / self.measured - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a short real run, and two small clusters")
    parser.add_argument("--check", action="store_true", help="real runs beside their simulation")
    parser.add_argument("--steps", type=int, default=10, help="of a real run")
    parser.add_argument("--run", type=Path, help="a run directory, whose lengths are drawn")
    parser.add_argument("--json", type=Path, help="file for the figures of --check")
    given = parser.parse_args()
    if given.smoke:
        smoke()
    elif given.check:
        found = [one for scenario in SCENARIOS for one in check(scenario, CHECKED[scenario.name], given.steps)]
        show_checked(found)
        if given.json:
            given.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n", encoding="utf-8")
    elif given.run is None:
        parser.error("expected --run DIRECTORY, --check or --smoke")
    else:
        show_clusters(recorded_lengths(given.run))


def smoke() -> None:
    (one,) = check(SCENARIOS[0], ((1, 1, 0),), WARM + 2)
    show_checked([one])
    show_clusters([(3, 9, 4), (7, 64, 2)], samplers=(2, 4), problems=8, sites=("0.5B",))


def check(scenario: Scenario, layouts: Sequence[tuple[int, int, int]], steps: int) -> list[Checked]:
    """Makes a real run for each (samplers, scorers, staleness); the first one gives the rates of all."""
    found: list[Checked] = []
    costs, groups = None, None
    with tempfile.TemporaryDirectory(prefix="grouprl-simulation-") as folder:
        for samplers, scorers, staleness in layouts:
            cluster = Cluster(samplers, scorers, scenario.max_rows, staleness)
            real = run(scenario, cluster, Path(folder), steps)
            fitted = costs is None
            costs, groups = costs or fit(real), groups or real.steps
            expected = simulate(costs, cluster, groups)[WARM:-1]  # the last one begins nothing more
            stale = [row.get("staleness", 0.0) for row in real.metrics[WARM:-1]]
            one = Checked(
                scenario.name,
                cluster,
                fitted,
                measured=real.median,
                simulated=statistics.median(step.seconds for step in expected),
                staleness=statistics.mean(stale),
                simulated_staleness=statistics.mean(step.staleness for step in expected),
            )
            print(f"{one.scenario}, {cluster}: {one.measured:.2f} s, simulated {one.simulated:.2f}", file=sys.stderr)
            found.append(one)
    return found


def show_checked(found: Sequence[Checked]) -> None:
    table = Table("takes longest", "samplers", "scorers", "s a step", "simulated", "error", "staleness", "simulated")
    for one in found:
        error = "(fitted)" if one.fitted else f"{one.error:+.1%}"
        layout = (str(one.cluster.samplers), str(one.cluster.scorers))
        stale = (f"{one.staleness:.0f}", f"{one.simulated_staleness:.0f}")
        table.add_row(one.scenario, *layout, f"{one.measured:.2f}", f"{one.simulated:.2f}", error, *stale)
    Console(width=110).print(table)


def recorded_lengths(directory: Path) -> list[Group]:
    """The lengths of the completions of all groups of a run."""
    steps = [row["step"] for row in read_run(directory).metrics]
    groups = (one.group.completions for step in steps for one in read_rollouts(directory, step))
    return [tuple(len(completion.token_ids) for completion in group) for group in groups]


@dataclass(frozen=True)
class Site:
    """A model on the machines that it is simulated on."""

    shape: ModelShape
    gpu: str
    together: int  # GPUs of a sampler, whose rates are added: above 1 no engine of this package does that
    ranks: int  # GPUs of the learner, at least


SITES = {  # the learner has a quarter as many GPUs as there are samplers, from `ranks` up to MOST_RANKS
    "0.5B": Site(SHAPES["Qwen2.5-0.5B"], "H100", 1, 8),
    "7B": Site(SHAPES["Qwen2.5-7B"], "H100", 1, 8),
    "14B": Site(SHAPES["Qwen2.5-14B"], "H200", 1, 8),
    "70B": Site(SHAPES["Llama-3.1-70B"], "H200", 8, 64),
}
SAMPLERS = (16, 64, 256, 1024, 4096)
PROBLEMS, GROUP, PROMPT, LONGEST = 1024, 16, 512, 4096
LINK = 5e10  # bytes per second between two machines, 400 Gb/s
INSIDE = 4.5e11  # between two GPUs of a machine, in one direction
MACHINE = 8  # GPUs
RATES = {"H100": Rates(989e12, 3.35e12, "its data sheet"), "H200": Rates(989e12, 4.8e12, "its data sheet")}  # bfloat16
# One core. Hashing and reading pickled completions were measured on a 2-core machine; copying is an assumption.
DIGEST, COPY, RECEIVE = 1.5e9, 2e9, 2e-7  # bytes per second, bytes per second, seconds a token
SCORE, SCORERS = 0.1, 64  # seconds of a group, an assumption; calls at once
MOST_RANKS, STEPS = 256, 4


def costs_of(site: Site, samplers: int, problems: int, mean: float) -> Costs:
    """The rates of a site: products, reads and links at those of the data sheets, without any other time."""
    shape, rates = site.shape, RATES[site.gpu]
    flops, bandwidth = rates.flops * site.together, rates.bandwidth * site.together
    body, weights = shape.linear_parameters, shape.linear_parameters + shape.embedding_parameters
    decode = DecodeRates(
        fixed=2 * weights / bandwidth,
        context=2 * shape.cached_numbers / bandwidth,
        product=2 * weights / flops,
        prompt=2 * body * PROMPT / flops,
        prompt_tokens=PROMPT,
    )
    step = StepShape(problems, GROUP, PROMPT, round(mean), dtype="bfloat16", recompute=True)
    ranks = ranks_of(site, samplers)
    own = replace(step, problems=math.ceil(problems / ranks))  # of the rank with the most groups
    floor = floor_of_step(shape, GRPO, own, rates)
    size = 4 * shape.parameters
    # Each machine takes the bytes from one that has them: their number doubles in each round.
    rounds = (1 + samplers * site.together // MACHINE).bit_length()
    return Costs(
        decode=decode,
        publish=2 * size / COPY + size / DIGEST,  # serialized, into the store, and hashed
        pull=rounds * size / LINK + 2 * size / COPY + size / DIGEST,
        receive_token=RECEIVE,
        score=SCORE,
        learn=exchange(shape, own, ranks, MACHINE if shape.parameters > 1e9 else 1),
        learn_token=(floor.reference + floor.learning) / (problems * GROUP * round(mean)),
    )


def exchange(shape: ModelShape, own: StepShape, ranks: int, shard: int) -> float:
    """Seconds of the collective operations at the full rate of the links; a ring moves (R - 1) / R of the bytes."""
    if ranks == 1:
        return 0.0
    updates, machines = own.minibatches, math.ceil(ranks / MACHINE)

    def ring(size: float, members: int, link: float) -> float:
        return size * (members - 1) / members / link

    learned = 4 * shape.parameters
    if shard == 1:
        return 2 * updates * ring(learned, ranks, INSIDE if machines == 1 else LINK)
    packs = len(own.packs) * updates
    # A layer is gathered for its forward and for its backward pass, and its gradient divided; then for the reference,
    # and once for sampling.
    inside = (3 * packs + 1) * ring(2 * shape.parameters, shard, INSIDE) + packs * ring(learned, shard, INSIDE)
    return inside + (2 * updates * ring(learned / shard, machines, LINK) if machines > 1 else 0.0)


def ranks_of(site: Site, samplers: int) -> int:
    """The GPUs of the learner."""
    return min(MOST_RANKS, max(site.ranks, samplers // 4))


def rows_of(site: Site) -> int:
    """The completions that a sampler decodes at once: its float32 weights, their bfloat16 copy and the cache fit."""
    shape, gpu = site.shape, GPUS[site.gpu]
    row = 2 * shape.cached_numbers * (LONGEST + PROMPT / GROUP * 4)
    fits = (0.9 * gpu.memory * site.together - 6 * shape.parameters) / row
    return max(GROUP, min(256, int(fits) // GROUP * GROUP))


def show_clusters(
    recorded: Sequence[Group],
    samplers: Sequence[int] = SAMPLERS,
    problems: int = PROBLEMS,
    sites: Sequence[str] = tuple(SITES),
) -> None:
    """Prints what each number of samplers would do."""
    stretch = LONGEST / max(map(max, recorded))
    draws = random.Random(0)

    def length() -> int:  # between the lengths that a stretched token stands for
        return max(1, min(LONGEST, round((draws.choice(draws.choice(recorded)) - draws.random()) * stretch)))

    steps = [[tuple(length() for _ in range(GROUP)) for _ in range(problems)] for _ in range(STEPS)]
    mean = statistics.mean(one for step in steps for group in step for one in group)
    print(
        f"SIMULATED. {problems} problems x {GROUP} completions of {mean:,.0f} tokens in the mean,\n"
        f"at most {LONGEST:,}; prompts of {PROMPT}; {SCORERS} scorers. learner = its GPUs.\n"
        "In brackets: with cluster.max_staleness=1."
    )
    table = Table(
        "model", "samplers", "learner", "s a step", "samplers idle", "learner idle", "last 10 %", "takes most"
    )
    for name in sites:
        site = SITES[name]
        for count in samplers:
            costs = costs_of(site, count, problems, mean)
            both = []
            for staleness in (0, 1):
                cluster = Cluster(count, SCORERS, rows_of(site), staleness)
                both.append((cluster, simulate(costs, cluster, steps)))
            (_, own), (_, behind) = both
            idle = [shares_idle(found, cluster, costs) for cluster, found in both]
            assert {step.staleness for step in behind[1:]} == {1}
            seconds = [statistics.median(step.seconds for step in found[1:-1]) for _, found in both]
            table.add_row(
                name,
                f"{count:,}",
                str(ranks_of(site, count)),
                f"{seconds[0]:,.0f} ({seconds[1]:,.0f})",
                *(f"{idle[0][part]:.0%} ({idle[1][part]:.0%})" for part in (0, 1)),
                f"{statistics.median(step.tail for step in own):,.0f} s",
                most(own, costs, cluster=both[0][0], tokens=sum(map(sum, steps[1]))),
            )
    Console(width=120).print(table)


def most(steps: Sequence[Step], costs: Costs, cluster: Cluster, tokens: int) -> str:
    """The part of a synchronous step that takes most, with its share."""
    step = steps[1]
    working = step.sampler_seconds / cluster.samplers
    parts = {
        "weights to samplers": costs.publish + costs.pull,
        "decoding": working - costs.pull,
        "uneven samplers": step.worked - step.began - costs.publish - working,
        "receiving in one process": step.sampled - step.worked,
        "scoring": max(0.0, step.scored - step.sampled),
        "learning": costs.learn + costs.learn_token * tokens,
    }
    name = max(parts, key=lambda part: parts[part])
    return f"{name}, {parts[name] / step.seconds:.0%}"


if __name__ == "__main__":
    main()
