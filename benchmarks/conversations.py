"""Seconds of 64 episodes whose tools take up to two seconds: continuous, and with a barrier after every turn.

    python benchmarks/conversations.py [--episodes 64] [--turns 4] [--seconds 2.0] [--prompt-tokens 100]

First with tools of no time: seconds and the tokens that are read, drawn ones apart, shared between turns and
episodes by the prefix tree, and with a tree that keeps nothing, so that each turn reads its episode from its begin.

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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor

from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request
from grouprl.rollout.episodes import Answer
from grouprl.rollout.tree import Ids, PrefixTree
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
    forks: bool = False
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


class Forgetful(PrefixTree):
    """A tree that keeps nothing."""

    def add(self, ids: Ids, pairs: Tensor, last_H: Tensor | None = None) -> None:
        """Forgets them."""


def unshared() -> AbstractContextManager[object]:
    """Makes engines read each turn from the begin of its episode."""
    return patch("grouprl.rollout.native.PrefixTree", Forgetful)


def measured(tools: Tools, given: argparse.Namespace) -> tuple[float, float, int]:
    """Wall seconds of one group of episodes, CPU seconds, and the tokens that were read."""
    model, tokenizer = load_model("abacus", device=torch.device("cpu")), load_tokenizer("abacus")
    engine = NativeEngine(model, tokenizer, seed=0, max_rows=64, conversation=tools)
    prompt_ids = (tuple(tokenizer("What is 2 + 3? ")["input_ids"]) * given.prompt_tokens)[: given.prompt_tokens]
    request = Request(Problem("p", "What is 2 + 3?"), prompt_ids, given.episodes)
    began, spent = time.perf_counter(), time.process_time()
    engine.generate([request], Sampling(max_tokens=given.max_tokens))
    return time.perf_counter() - began, time.process_time() - spent, engine.tokens_read


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures both forms and prints them over the floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args(arguments)
    if given.smoke:
        given.episodes, given.turns, given.seconds, given.max_tokens = 8, 2, 0.1, 4
    shape = given.episodes, given.turns, given.seconds
    continuous, barrier = Tools(*shape, barrier=False), Tools(*shape, barrier=True)
    latencies = [[continuous.latency(index, turn) for turn in range(given.turns)] for index in range(given.episodes)]
    longest, maxima = max(map(sum, latencies)), sum(map(max, zip(*latencies, strict=True)))
    at_once = Tools(*shape[:2], 0.0, barrier=False)
    measured(at_once, given)  # imports and compiles
    for name, form in (("shared", nullcontext), ("unshared", unshared), ("shared", nullcontext)):
        with form():
            decoding, spent, read = measured(at_once, given)
        print(f"{name:<11} {decoding:6.2f} s, {spent:.2f} CPU seconds, {read:,} tokens read")
    print(f"{given.episodes} episodes of {given.turns} turns; tools of 0 to {given.seconds:g} s")
    print(f"longest episode {longest:.2f} s, decoding alone {decoding:.2f} s, sum of the slowest tools {maxima:.2f} s")
    for name, tools in (("continuous", continuous), ("barrier", barrier)):
        taken, *_ = measured(tools, given)
        print(f"{name:<11} {taken:6.2f} s = {taken / (longest + decoding):.2f} x (longest episode + decoding)")


if __name__ == "__main__":
    main()
