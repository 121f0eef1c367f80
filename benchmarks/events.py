"""A model of a step on samplers and scorers, event by event: what each actor does, and when, from a few rates.

Jobs go to actors as in `grouprl.engines.ray_actors`: in the order in which they were given, each to the actor that is
free first. Actors that are lost, and groups that replace dropped ones, are not modeled. Times are seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from grouprl.engines.ray_samplers import _parts
from grouprl.rollout.decoding import _REFILL_SHARE

Group = tuple[int, ...]
"""The tokens of each completion of a group."""


@dataclass(frozen=True)
class DecodeRates:
    """A decode step takes max(fixed + context * cached tokens, product * rows) + row * rows."""

    fixed: float
    row: float = 0.0
    context: float = 0.0  # a cached token that is read
    product: float = 0.0
    prompt: float = 0.0  # a prompt that is read when its group begins
    prompt_tokens: int = 0  # of each prompt


@dataclass(frozen=True)
class Costs:
    """What the parts of a step take."""

    decode: DecodeRates
    job: float = 0.0  # of a sampler, beside the decode steps
    hop: float = 0.0  # of a job to an actor and of its answer back
    publish: float = 0.0  # of the learner: a version of the weights into the store
    pull: float = 0.0  # of a sampler: a version out of the store
    receive_token: float = 0.0  # of the learner's process, which takes one answer after the other
    score: float = 0.0  # of a group
    score_token: float = 0.0
    learn: float = 0.0  # of a step, with everything that the learner's process does alone
    learn_token: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """The actors, and how far sampling may run ahead."""

    samplers: int
    scorers: int  # calls at once
    max_rows: int = 256
    max_staleness: int = 0


@dataclass(frozen=True)
class Step:
    """When the parts of a step ended, and what was waited for."""

    began: float
    worked: float  # the last sampler
    sampled: float  # the learner's process has all completions
    scored: float
    ended: float
    staleness: int  # updates between the weights of the oldest token and those that learned from it
    tail: float  # seconds of sampling after 90 % of the completions had ended
    sampler_seconds: float  # busy, of all samplers together
    scorer_seconds: float

    @property
    def seconds(self) -> float:
        """The time of the whole step."""
        return self.ended - self.began


@dataclass
class Actors:
    """Actors that take jobs in their order; `held` is the version of the weights that each has."""

    count: int
    free: list[tuple[float, int]] = field(init=False)
    held: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = [(0.0, place) for place in range(self.count)]

    def take(self, ready: float) -> tuple[float, int]:
        """The actor that is free first, and when it can begin what is ready at a time."""
        free, place = heapq.heappop(self.free)
        return max(free, ready), place

    def give(self, until: float, place: int) -> None:
        """The actor is busy until then."""
        heapq.heappush(self.free, (until, place))


@dataclass(frozen=True)
class Sampled:
    """The groups of a step that samplers work on."""

    version: int  # updates made before
    jobs: tuple[tuple[float, tuple[Group, ...]], ...]  # when each is there, and its groups
    ends: tuple[float, ...]  # of completions
    busy: float


def simulate(costs: Costs, cluster: Cluster, steps: Sequence[Sequence[Group]]) -> list[Step]:
    """Makes steps, each with these groups; a later step begins when the learner has ended the one before."""
    samplers, scorers = Actors(cluster.samplers), Actors(cluster.scorers)
    begun: dict[int, Sampled] = {}
    found: list[Step] = []
    now, shipped = 0.0, -1
    for number, groups in enumerate(steps):
        began = now
        for coming in range(number, min(number + cluster.max_staleness + 1, len(steps))):
            if coming not in begun:
                if shipped < number:
                    now, shipped = now + costs.publish, number
                begun[coming] = sample(costs, cluster, samplers, steps[coming], now, number)
        mine = begun.pop(number)
        sampled = max([now, *(there for there, _ in mine.jobs)])
        worked = max([now, *mine.ends])
        scored, busy = score(costs, scorers, mine, now)
        now = max(sampled, scored) + costs.learn + costs.learn_token * sum(map(sum, groups))
        late = max(mine.ends) - sorted(mine.ends)[math.ceil(0.9 * len(mine.ends)) - 1]
        found.append(Step(began, worked, sampled, scored, now, number - mine.version, late, mine.busy, busy))
    return found


def sample(
    costs: Costs, cluster: Cluster, samplers: Actors, groups: Sequence[Group], now: float, version: int
) -> Sampled:
    """Gives the jobs of a step to samplers, which have others before them."""
    parts = _parts([len(group) for group in groups], cluster.samplers, cluster.max_rows)
    if not cluster.max_staleness:  # jobs that are waited for come before others, the last one first
        parts = parts[::-1]
    jobs, ends, busy = [], [], 0.0
    for part in parts:
        own = tuple(groups[place] for place in part)
        begins, place = samplers.take(now + costs.hop / 2)
        pull = costs.pull if samplers.held.get(place) != version else 0.0
        samplers.held[place] = version
        within = completion_ends(costs.decode, own, cluster.max_rows)
        last = begins + pull + costs.job + max(within)
        samplers.give(last + costs.hop / 2, place)
        jobs.append((last + costs.hop / 2, own))
        ends += [begins + pull + costs.job + end for end in within]
        busy += last - begins
    received, there = 0.0, []
    for ready, own in sorted(jobs):
        received = max(received, ready) + costs.receive_token * sum(map(sum, own))
        there.append((received, own))
    return Sampled(version, tuple(there), tuple(ends), busy)


def score(costs: Costs, scorers: Actors, sampled: Sampled, now: float) -> tuple[float, float]:
    """Scores the groups of a step as they come; when the last one is there, and the busy seconds of all scorers."""
    last, busy = now, 0.0
    for there, groups in sorted(sampled.jobs):
        for group in groups:
            seconds = costs.score + costs.score_token * sum(group)
            begins, place = scorers.take(max(there, now))
            scorers.give(begins + seconds, place)
            last, busy = max(last, begins + seconds), busy + seconds
    return last, busy


def completion_ends(rates: DecodeRates, groups: Sequence[Group], max_rows: int) -> list[float]:
    """When each completion of a job ends; finished rows leave at once, waiting groups enter when enough are free."""
    waiting = deque(enumerate(groups))
    rows = min(max_rows, sum(map(len, groups)))
    live: list[tuple[int, int, int]] = []  # decode step of the last token, length, group
    left: Counter[int] = Counter()  # live completions of each group
    step, seconds, context, ends = 0, 0.0, 0, list[float]()
    while waiting or live:
        if waiting and (not live or rows - len(live) >= _REFILL_SHARE * rows):
            while waiting and (len(waiting[0][1]) <= rows - len(live) or not live):
                place, group = waiting.popleft()
                seconds += rates.prompt
                left[place] = len(group)
                context += rates.prompt_tokens + len(group)
                for length in group:  # reading the prompt draws the first token
                    heapq.heappush(live, (step + length - 1, length, place))
        if count := live[0][0] - step:
            seconds += span(rates, len(live), context, count)
            context += count * len(live)
            step = live[0][0]
        while live and live[0][0] == step:
            _, length, place = heapq.heappop(live)
            ends.append(seconds)
            left[place] -= 1
            context -= length + (0 if left[place] else rates.prompt_tokens)
    return ends


def span(rates: DecodeRates, rows: int, context: int, count: int) -> float:
    """Seconds of some decode steps with as many rows; each adds one cached token a row."""
    product = rates.product * rows
    # Steps in which products take longer than reads, before the cache has grown.
    growth = rates.context * rows
    first = count if product > rates.fixed + rates.context * context else 0
    if first and growth:
        first = min(count, math.ceil((product - rates.fixed - rates.context * context) / growth))
    rest = count - first
    reads = rest * (rates.fixed + rates.context * context) + growth * (rest * first + rest * (rest - 1) / 2)
    return first * product + reads + rates.row * rows * count


def shares_idle(steps: Sequence[Step], cluster: Cluster, costs: Costs) -> tuple[float, float]:
    """The parts of the time in which samplers and the learner wait, without the first and the last step."""
    own = steps[1:-1]
    seconds = sum(step.seconds for step in own)
    samplers = 1 - sum(step.sampler_seconds for step in own) / seconds / cluster.samplers
    learner = sum(step.ended - max(step.sampled, step.scored) + costs.publish for step in own)
    return samplers, 1 - learner / seconds
