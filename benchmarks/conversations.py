"""Seconds of 64 episodes whose tools take up to two seconds: continuous, and with a barrier after every turn.

    python benchmarks/conversations.py [--episodes 64] [--turns 4] [--seconds 2.0]

An episode continues when its own tool is done. With a barrier, all episodes wait for the slowest tool of the turn: so
does a sampler that generates a batch turn by turn. The floor is the longest episode alone.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request
from grouprl.rollout.episodes import Answer
from grouprl.types import Completion, Episode, ObservedTokens, Problem, Sampling

OBSERVED = tuple(range(300, 320))


@dataclass
class Tools:
    """Answers each turn after a time that depends on the episode and the turn; `barrier` waits for all of a turn."""

    episodes: int
    turns: int
    seconds: float
    barrier: bool
    most_tokens: int = 400
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(512))

    def __post_init__(self) -> None:
        self._gates = [threading.Barrier(self.episodes) for _ in range(self.turns)]

    def latency(self, index: int, turn: int) -> float:
        """Seconds of a tool."""
        return random.Random(f"{index}/{turn}").random() * self.seconds

    def answer(
        self, request: Request, turns: Sequence[Completion], observations: Sequence[ObservedTokens]
    ) -> Future[Answer]:
        """See `grouprl.rollout.episodes.Conversation`."""
        return self.threads.submit(self._answer, turns[-1].index, len(turns) - 1)

    def _answer(self, index: int, turn: int) -> Answer:
        time.sleep(self.latency(index, turn))
        if self.barrier:
            self._gates[turn].wait()
        return Answer(episode=Episode((), ())) if turn + 1 == self.turns else Answer(OBSERVED)


def seconds_of(engine_seed: int, tools: Tools | None, episodes: int, max_tokens: int) -> float:
    """Wall seconds of one group of episodes."""
    model, tokenizer = load_model("abacus", device=torch.device("cpu")), load_tokenizer("abacus")
    engine = NativeEngine(model, tokenizer, seed=engine_seed, max_rows=64, conversation=tools)
    request = Request(Problem("p", "What is 2 + 3?"), tuple(tokenizer("What is 2 + 3?")["input_ids"]), episodes)
    began = time.perf_counter()
    engine.generate([request], Sampling(max_tokens=max_tokens))
    return time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures both forms and prints them over the floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args(arguments)
    if given.smoke:
        given.episodes, given.turns, given.seconds, given.max_tokens = 8, 2, 0.1, 4
    shape = given.episodes, given.turns, given.seconds
    continuous, barrier = Tools(*shape, barrier=False), Tools(*shape, barrier=True)
    latencies = [[continuous.latency(index, turn) for turn in range(given.turns)] for index in range(given.episodes)]
    longest, maxima = max(map(sum, latencies)), sum(map(max, zip(*latencies, strict=True)))
    decoding = seconds_of(0, Tools(*shape[:2], 0.0, barrier=False), given.episodes, given.max_tokens)
    print(f"{given.episodes} episodes of {given.turns} turns; tools of 0 to {given.seconds:g} s")
    print(f"longest episode {longest:.2f} s, decoding alone {decoding:.2f} s, sum of the slowest tools {maxima:.2f} s")
    for name, tools in (("continuous", continuous), ("barrier", barrier)):
        taken = seconds_of(0, tools, given.episodes, given.max_tokens)
        print(f"{name:<11} {taken:6.2f} s = {taken / (longest + decoding):.2f} x (longest episode + decoding)")


if __name__ == "__main__":
    main()
