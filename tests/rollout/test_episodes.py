"""Completions of several turns: what the policy wrote is kept as it is, and does not depend on who answers when."""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from engine_setting import DRAWN, Setting, all_of, assert_same, setting_of
from grouprl.rollout import NativeEngine, Request
from grouprl.rollout.episodes import Answer
from grouprl.types import Completion, Episode, Group, ObservedTokens
from oracles import own_logits

SHOWN = ((50, 51, 52), (60,), (70, 71, 72, 73, 74, 75, 76))
KEPT = {(2, 1): 2, (3, 2): 1, (3, 3): 6}  # tokens that stay where an episode, by its index, forks after a turn


@dataclass
class Talk:
    """Answers every episode with fixed tokens, a number of times that depends on the episode; late, in any order."""

    latency: float = 0.0
    most_tokens: int = 160
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(64))
    heard: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)

    def answer(self, request: Request, turns: Sequence[Completion], shown: Sequence[ObservedTokens]) -> Future[Answer]:
        self.heard.append((request.problem.id, turns[-1].index, turns[-1].token_ids))
        count, index = len(turns), turns[-1].index
        assert [one.token_ids for one in shown] == list(SHOWN[: count - 1])
        return self.threads.submit(self._answer, count, index)

    def _answer(self, count: int, index: int) -> Answer:
        time.sleep(random.random() * self.latency)
        if count > index % 4:
            return Answer(episode=Episode((), ({"role": "assistant", "content": str(count)},), reward=float(count)))
        return Answer(SHOWN[count - 1], KEPT.get((index, count)))


@pytest.fixture(scope="module")
def setting(tiny: Path) -> Setting:
    return setting_of(tiny)


def sampled(setting: Setting, talk: Talk, max_rows: int = 64) -> list[Group]:
    engine = NativeEngine(setting.model, setting.tokenizer, seed=0, max_rows=max_rows, conversation=talk)
    return engine.generate(setting.requests(), DRAWN)


@pytest.fixture(scope="module")
def groups(setting: Setting) -> list[Group]:
    return sampled(setting, Talk())


def test_an_episode_has_its_turns_and_what_stood_between_them(groups: list[Group]):
    for completion in all_of(groups):
        turns = completion.index % 4 + 1
        assert completion.episode is not None
        assert completion.episode.reward == turns
        assert [one.token_ids for one in completion.observations] == list(SHOWN[: turns - 1])
        ends = completion.episode.ends
        assert [one.after - 1 for one in completion.observations] == list(ends[:-1])
        assert ends[-1] == len(completion) - 1 == len(completion.logprobs) - 1
        assert all(0 < after - before <= DRAWN.max_tokens for before, after in pairwise((-1, *ends)))


@torch.no_grad()
def test_log_probs_are_those_of_the_plain_forward_pass_over_all_that_was_read(setting: Setting, groups: list[Group]):
    for group in groups:
        for completion in group.completions:
            read, begun, own = list(group.prompt_ids), 0, []
            for one in [*completion.observations, ObservedTokens(len(completion), ())]:
                turn = completion.token_ids[begun : one.after]
                logprobs = own_logits(setting.own, read, turn).log_softmax(-1)
                own += [logprobs[at, token].item() for at, token in enumerate(turn)]
                read, begun = [*[*read, *turn][: one.kept], *one.token_ids], one.after
            assert list(completion.plain_logprobs) == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize(("latency", "max_rows"), [(0.05, 64), (0.02, 5), (0.0, 1)])
def test_episodes_do_not_depend_on_latencies_or_rows(
    setting: Setting, groups: list[Group], latency: float, max_rows: int
):
    talk = Talk(latency)
    again = sampled(setting, talk, max_rows)
    assert_same(again, groups)
    assert [one.episode for one in all_of(again)] == [one.episode for one in all_of(groups)]
    times = Counter((problem, index) for problem, index, _ in talk.heard)
    assert set(times.values()) == {1, 2, 3, 4}


def test_a_later_turn_draws_other_random_numbers_than_the_first(setting: Setting, groups: list[Group]):
    """Else a policy that is shown nothing new would write its first turn again."""
    pairs = [(one.token_ids[0], one.token_ids[one.observations[0].after]) for one in all_of(groups) if one.observations]
    assert sum(first == second for first, second in pairs) < len(pairs) / 2


def test_an_error_of_an_environment_stops_the_sampling(setting: Setting):
    class Broken(Talk):
        def _answer(self, count: int, index: int) -> Answer:
            raise OSError("no environment")

    with pytest.raises(OSError, match="no environment"):
        sampled(setting, Broken())


def test_while_a_tool_runs_its_row_serves_others(setting: Setting):
    """The first five answers wait for each other: with four rows that episodes held, the fifth would never be asked."""
    together = threading.Barrier(5)

    class Meeting(Talk):
        def answer(
            self, request: Request, turns: Sequence[Completion], shown: Sequence[ObservedTokens]
        ) -> Future[Answer]:
            first = len(self.heard) < together.parties
            super().answer(request, turns, shown)
            return self.threads.submit(self._met, first, len(turns), turns[-1].index)

        def _met(self, first: bool, count: int, index: int) -> Answer:
            if first:
                together.wait(60)
            return self._answer(count, index)

    assert all(one.episode for one in all_of(sampled(setting, Meeting(), max_rows=4)))
