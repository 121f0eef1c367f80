"""Completions of several turns: what the policy wrote is kept as it is, and does not depend on who answers when."""

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_setting import DRAWN, Setting, all_of, assert_same, setting_of
from few_rows import pretend_processor
from grouprl.forward.layouts import Prefix
from grouprl.rollout import NativeEngine, Request, native
from grouprl.rollout.episodes import Answer
from grouprl.rollout.tree import Ids, PrefixTree
from grouprl.tools.planner import GRPO, ModelShape, StepShape, plan_memory
from grouprl.types import Completion, Episode, Group, ObservedTokens, Problem, Sampling, StopReason
from oracles import own_logits

SHOWN = ((50, 51, 52), (60,), (70, 71, 72, 73, 74, 75, 76))
# Tokens that stay where an episode, by its index, forks after a turn.
KEPT = {(1, 1): 0, (2, 1): 2, (3, 2): 1, (3, 3): 6}


@dataclass
class Talk:
    """Answers every episode with fixed tokens, a number of times that depends on the episode; late, in any order."""

    latency: float = 0.0
    turns: int = 4
    most_tokens: int = 160
    most: int | None = None  # tokens of each turn but the first
    kept: Mapping[tuple[int, int], int] = field(default_factory=dict)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(64))
    heard: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)

    def answer(self, request: Request, turns: Sequence[Completion], shown: Sequence[ObservedTokens]) -> Future[Answer]:
        self.heard.append((request.problem.id, turns[-1].index, turns[-1].token_ids))
        count, index = len(turns), turns[-1].index
        assert [one.token_ids for one in shown] == list(SHOWN[: count - 1])
        return self.threads.submit(self._answer, count, index)

    def _answer(self, count: int, index: int) -> Answer:
        time.sleep(random.random() * self.latency)
        if count > index % 4 or count == self.turns:
            return Answer(episode=Episode((), ({"role": "assistant", "content": str(count)},), reward=float(count)))
        return Answer(SHOWN[count - 1], self.kept.get((index, count)), self.most)

    @property
    def forks(self) -> bool:
        return bool(self.kept)


@pytest.fixture(scope="module", params=["kernels", "modules"])
def setting(request: pytest.FixtureRequest, tiny: Path) -> Setting:
    setting = setting_of(tiny)
    if request.param == "modules":
        setting.model.get_decoder().register_forward_hook(lambda *_: None)  # keeps the kernels out
    return setting


def engine_of(setting: Setting, talk: "Talk", max_rows: int = 64, dtype: str = "float32") -> NativeEngine:
    return NativeEngine(setting.model, setting.tokenizer, seed=0, max_rows=max_rows, dtype=dtype, conversation=talk)


def sampled(setting: Setting, talk: Talk, max_rows: int = 64) -> list[Group]:
    return engine_of(setting, talk, max_rows).generate(setting.requests(), DRAWN)


@pytest.fixture(scope="module")
def groups(setting: Setting) -> list[Group]:
    return sampled(setting, Talk())


def read_ids(completion: Completion) -> list[int]:
    """All tokens that the policy read of an episode, in order."""
    ids, begun = [], 0
    for one in completion.observations:
        ids += [*completion.token_ids[begun : one.after], *one.token_ids]
        begun = one.after
    return [*ids, *completion.token_ids[begun:]]


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


@pytest.mark.parametrize("max_rows", [64, 5])
def test_a_turn_has_what_its_episode_has_left(setting: Setting, groups: list[Group], max_rows: int):
    """It begins as the turn that may be longer, and is cut."""
    cuts = 0
    for whole, cut in zip(all_of(groups), all_of(sampled(setting, Talk(most=3), max_rows)), strict=True):
        assert whole.episode is not None
        assert cut.episode is not None
        (first, *later), (same, *shorter) = whole.episode.ends, cut.episode.ends
        assert cut.token_ids[: same + 1] == whole.token_ids[: first + 1]
        assert all(0 < after - before <= 3 for before, after in pairwise((same, *shorter)))
        if later:
            second = whole.token_ids[first + 1 : later[0] + 1]
            assert cut.token_ids[same + 1 : shorter[0] + 1] == second[:3]
            cuts += len(second) > 3
            is_last = len(shorter) == 1
            assert not (is_last and len(second) > 3) or cut.stop_reason is StopReason.LENGTH
    assert cuts > 2


@torch.no_grad()
def plain_gap(setting: Setting, groups: list[Group]) -> float:
    """The largest difference of log-probs to those of the plain forward pass over all tokens."""
    gaps = []
    for group in groups:
        for completion in group.completions:
            read, begun, own = list(group.prompt_ids), 0, []
            for one in [*completion.observations, ObservedTokens(len(completion), ())]:
                turn = completion.token_ids[begun : one.after]
                logprobs = own_logits(setting.own, read, turn).log_softmax(-1)
                own += [logprobs[at, token].item() for at, token in enumerate(turn)]
                read, begun = [*[*read, *turn][: one.kept], *one.token_ids], one.after
            gaps += [abs(ours - theirs) for ours, theirs in zip(completion.plain_logprobs, own, strict=True)]
    return max(gaps)


def test_log_probs_are_those_of_the_plain_forward_pass_over_all_tokens(setting: Setting, groups: list[Group]):
    assert plain_gap(setting, groups) < 1e-5


def test_in_bfloat16_they_are_those_to_rounding(setting: Setting):
    """What turns keep between them is rounded as it was in the cache: no more than without later turns."""
    requests = [replace(one, completions=5) for one in setting.requests()]
    gaps = [
        plain_gap(setting, engine_of(setting, talk, dtype="bfloat16").generate(requests, DRAWN))
        for talk in (Talk(), Talk(turns=1))
    ]
    assert gaps[0] < 2 * gaps[1] < 0.5


@pytest.mark.parametrize(
    ("setting", "latency", "max_rows"),
    [("kernels", 0.05, 64), ("kernels", 0.02, 5), ("modules", 0.02, 5)],
    indirect=["setting"],
)
def test_a_fork_is_read_from_where_it_begins(setting: Setting, latency: float, max_rows: int):
    found = sampled(setting, Talk(latency, kept=KEPT), max_rows)
    assert [one.episode.forks for one in all_of(found)[:4] if one.episode] == [0, 1, 1, 2]
    assert plain_gap(setting, found) < 1e-5
    assert_same(found, sampled(setting, Talk(kept=KEPT)))


@pytest.mark.parametrize(
    ("setting", "latency", "max_rows"),
    [("kernels", 0.05, 5), ("kernels", 0.0, 1), ("modules", 0.05, 5)],
    indirect=["setting"],
)
def test_episodes_do_not_depend_on_latencies_or_rows(
    setting: Setting, groups: list[Group], latency: float, max_rows: int
):
    talk = Talk(latency)
    again = sampled(setting, talk, max_rows)
    assert_same(again, groups)
    assert [one.episode for one in all_of(again)] == [one.episode for one in all_of(groups)]
    times = Counter((problem, index) for problem, index, _ in talk.heard)
    assert set(times.values()) == {1, 2, 3, 4}


@pytest.mark.parametrize("setting", ["kernels"], indirect=True)
def test_a_model_that_is_not_packed_has_the_same_episodes(tiny: Path, groups: list[Group]):
    """Its turns read all before them, with the caches of transformers."""
    setting = setting_of(tiny)
    setting.model.set_attn_implementation("sdpa")
    assert_same(sampled(setting, Talk(0.02), max_rows=5), groups)


@pytest.mark.parametrize(("temperature", "fewest", "dtype"), [(1.0, 0, "float32"), (0.1, 16, "bfloat16")])
def test_the_bits_do_not_depend_on_who_is_answered_when(
    setting: Setting, temperature: float, fewest: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With a low temperature many episodes share what they wrote. `fewest`: of this or of a pretended processor."""
    pretend_processor(monkeypatch, tmp_path, fewest=fewest)
    sampling, found = replace(DRAWN, temperature=temperature), []
    requests = [replace(request_of(range(90 + 7 * at, 112 + 3 * at)), completions=12) for at in range(3)]
    before = torch.get_num_threads()
    try:
        for threads, latency in ((1, 0.0), (1, 0.04), (2, 0.02)):
            torch.set_num_threads(threads)
            found.append(engine_of(setting, Talk(latency), dtype=dtype).generate(requests, sampling))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
    firsts = [{one.token_ids[: one.episode.ends[0] + 1] for one in group.completions} for group in found[0]]
    assert (sum(map(len, firsts)) < 36) == (temperature < 1.0)


def test_a_later_turn_draws_other_random_numbers_than_the_first(setting: Setting, groups: list[Group]):
    """Else a policy that is shown nothing new would write its first turn again."""
    pairs = [(one.token_ids[0], one.token_ids[one.observations[0].after]) for one in all_of(groups) if one.observations]
    assert sum(first == second for first, second in pairs) < len(pairs) / 2


@pytest.mark.parametrize("setting", ["kernels"], indirect=True)
def test_an_error_of_an_environment_stops_the_sampling(setting: Setting):
    class Broken(Talk):
        def _answer(self, count: int, index: int) -> Answer:
            raise OSError("no environment")

    with pytest.raises(OSError, match="no environment"):
        sampled(setting, Broken())


@pytest.mark.parametrize("setting", ["kernels"], indirect=True)
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


# What is computed


GROUP = 4  # its episodes have 1, 2, 3 and 4 turns
# A later turn reads the last token of the turn before it, which was drawn and not read, and what it was shown.
LATER = [1 + len(shown) for shown in SHOWN]


def request_of(ids: Sequence[int], before: int = 0) -> Request:
    return Request(Problem(str(ids), ""), tuple(ids), GROUP, before=before)


def test_a_later_turn_reads_what_it_was_shown_and_a_group_its_prompt_once(setting: Setting):
    engine = engine_of(setting, Talk(0.05))
    groups = engine.generate([request_of(range(90, 112)), request_of(range(150, 160))], DRAWN)
    firsts = [one.token_ids[: one.episode.ends[0] + 1] for one in all_of(groups) if one.episode]
    assert len(set(firsts)) == 2 * GROUP
    assert engine.tokens_read == 22 + 10 + 2 * (3 * LATER[0] + 2 * LATER[1] + LATER[2])


def test_what_begins_all_prompts_is_read_once(setting: Setting):
    engine = engine_of(setting, Talk(turns=1))
    groups = engine.generate([request_of((*range(90, 106), last), before=16) for last in (7, 8, 9)], DRAWN)
    assert engine.tokens_read == 16 + 3
    assert plain_gap(setting, groups) < 1e-5


@pytest.mark.parametrize("latency", [0.0, 0.05])
def test_episodes_that_write_and_are_shown_the_same_read_it_once(setting: Setting, latency: float):
    engine = engine_of(setting, Talk(latency))
    [group] = engine.generate([request_of(range(90, 112))], Sampling(max_tokens=6, temperature=0.0))
    longest = read_ids(group.completions[-1])
    assert all(read_ids(one) == longest[: len(read_ids(one))] for one in group.completions)
    assert engine.tokens_read == 22 + sum(LATER)
    assert plain_gap(setting, [group]) < 1e-5


@pytest.mark.parametrize(("setting", "limit"), [("kernels", 0), ("kernels", 60), ("modules", 60)], indirect=["setting"])
def test_what_is_evicted_is_read_again(
    setting: Setting, groups: list[Group], limit: int, monkeypatch: pytest.MonkeyPatch
):
    most = []

    class Small(PrefixTree):
        def __init__(self, ids: Ids, prefix: Prefix | None, _room: int, dtype: torch.dtype) -> None:
            super().__init__(ids, prefix, limit, dtype)

        def add(self, *given: Any) -> None:
            super().add(*given)
            most.append(self.kept)

    whole = engine_of(setting, Talk())
    whole.generate(setting.requests(), DRAWN)
    monkeypatch.setattr(native, "PrefixTree", Small)
    engine = engine_of(setting, Talk(0.02), max_rows=7)
    assert_same(engine.generate(setting.requests(), DRAWN), groups)
    assert engine.tokens_read > whole.tokens_read
    assert max(most) <= limit


def test_without_limits_reached_nothing_is_read_twice(setting: Setting, groups: list[Group]):
    """As many rows as episodes: the tree has room for all, whoever answers when."""
    engine = engine_of(setting, Talk(0.05))
    engine.generate(setting.requests(), DRAWN)
    prompts = sum(len(group.prompt_ids) for group in groups)
    sequences = {
        (
            group.prompt_ids,
            tuple(read_ids(one)[: one.observations[turn].after + sum(map(len, SHOWN[: turn + 1]))]),
        ): turn
        for group in groups
        for one in group.completions
        for turn in range(len(one.observations))
    }
    assert engine.tokens_read == prompts + sum(LATER[turn] for turn in sequences.values())


@pytest.mark.parametrize("setting", ["kernels"], indirect=True)
def test_the_planner_counts_what_is_kept(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    """Two groups of 5 in 6 rows: the prompts of both and 6 episodes of 160 tokens, and as much between their turns."""
    rooms = []

    class Noted(PrefixTree):
        def __init__(self, ids: Ids, prefix: Prefix | None, room: int, dtype: torch.dtype) -> None:
            rooms.append(room)
            super().__init__(ids, prefix, room, dtype)

    monkeypatch.setattr(native, "PrefixTree", Noted)
    requests = [replace(request_of(range(first, first + 9)), completions=5) for first in (90, 150)]
    engine_of(setting, Talk(), max_rows=6).generate(requests, DRAWN)
    assert rooms == [2 * 9 + 6 * 160]
    shape = ModelShape("", 2, 64, 4, 2, 16, 128, 320, tied=True)
    step = StepShape(2, 5, 9, 160, max_rows=6, device="cpu", episodes=True)
    pair = 2 * shape.layers * shape.kv_heads * shape.head_size * 4  # bytes of a token in float32
    assert plan_memory(shape, GRPO, step).rollout.cache == 2 * rooms[0] * pair
