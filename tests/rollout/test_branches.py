"""Branches of a completion: what follows another token at the same random numbers, against a slow reference."""

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch

from engine_setting import DRAWN, ENDS, Setting, setting_of
from grouprl.models.prompts import completion_texts
from grouprl.rollout.engine import structured_sampling
from grouprl.rollout.sampler import row_key, uniforms
from grouprl.tools.proof.branch_engine import BranchEngine, ReadCompletion
from grouprl.types import Completion, Sampling, StopReason
from oracles import own_logits, slow_policy

SAMPLINGS = {
    "plain": DRAWN,
    "truncated": Sampling(max_tokens=24, temperature=0.8, top_p=0.9, repetition_penalty=1.2),
    "stopped": Sampling(max_tokens=24, stop=("e", "15")),
    "short": Sampling(max_tokens=4, repetition_penalty=1.5),  # of every token, as none is cut off
}


@pytest.fixture(scope="module")
def setting(tiny: Path) -> Setting:
    return setting_of(tiny)


def engine_of(setting: Setting, rows: int = 7) -> BranchEngine:
    return BranchEngine(setting.model, setting.tokenizer, seed=0, max_rows=rows)


def read_one(setting: Setting, sampling: Sampling, index: int = 1) -> ReadCompletion:
    """A completion of the third prompt, sampled with others and read alone."""
    request = setting.request(2, 3, "epoch 1")
    group = setting.engine().generate([setting.request(0, 2), request], sampling)[1]
    return engine_of(setting).read(request, group.completions[index], sampling)


def branches_of(setting: Setting, read: ReadCompletion) -> list[tuple[int, int]]:
    """Up to two likely other tokens at each position."""
    engine = engine_of(setting)
    return [(at, token) for at in range(len(read.completion)) for token in [*engine.likely(read, at, 2, 0.0)][1:]]


@torch.no_grad()
def slow_chances(setting: Setting, read: ReadCompletion, written: list[int]) -> list[float]:
    prompt = read.request.prompt_ids
    logits = own_logits(setting.own, prompt, [*written, 0])[-1].tolist()
    return slow_policy(logits, read.sampling, before=[*prompt, *written])


def slow_branch(setting: Setting, read: ReadCompletion, position: int, token: int) -> tuple[list[int], StopReason]:
    """Token by token: all that stands before is read anew, and the distribution is inverted at the counted number."""
    key = row_key(0, read.request.stream, read.request.problem.id, read.completion.index)
    written = [*read.completion.token_ids[:position], token]
    while True:
        (text,) = completion_texts([written], setting.tokenizer)
        if written[-1] in ENDS:
            return written, StopReason.END
        if any(stop in text for stop in read.sampling.stop):
            return written, StopReason.STOP_STRING
        if len(written) == read.sampling.max_tokens:
            return written, StopReason.LENGTH
        number = float(uniforms(torch.tensor([key]), torch.tensor([len(written)])))
        sums = [*accumulate(slow_chances(setting, read, written))]
        written.append(bisect_right(sums, number * sums[-1]))


@pytest.mark.parametrize(("name", "kernels"), [*((name, "on") for name in SAMPLINGS), ("truncated", "off")])
def test_the_completions_own_token_gives_the_completion_again(
    setting: Setting, name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUPRL_KERNELS", kernels)
    for index in range(3):
        read = read_one(setting, SAMPLINGS[name], index)
        own = read.completion
        for at, made in enumerate(engine_of(setting).sample(read, [*enumerate(own.token_ids)])):
            assert (made.token_ids, made.text, made.stop_reason) == (own.token_ids, own.text, own.stop_reason)
            assert made.logprobs[at + 1 :] == pytest.approx(own.logprobs[at + 1 :], abs=2e-5)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_branch_is_plain_sampling_after_its_beginning(setting: Setting, name: str) -> None:
    read = read_one(setting, SAMPLINGS[name])
    begun = branches_of(setting, read)[:16]
    made = engine_of(setting).sample(read, begun)
    assert len({one.token_ids for one in made}) > 1
    for one, (at, token) in zip(made, begun, strict=True):
        written, reason = slow_branch(setting, read, at, token)
        assert ([*one.token_ids], one.stop_reason) == (written, reason)


def test_a_structure_goes_on_where_the_beginning_left_it(setting: Setting) -> None:
    sampling = structured_sampling(Sampling(max_tokens=24), "(xy|zuv)*[a-z]{2,3}", setting.model, setting.tokenizer)
    read = read_one(setting, sampling)
    own = read.completion
    assert all(one.token_ids == own.token_ids for one in engine_of(setting).sample(read, [*enumerate(own.token_ids)]))


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_likely_tokens_are_those_of_the_distribution(setting: Setting, name: str) -> None:
    read = read_one(setting, SAMPLINGS[name])
    for at in range(len(read.completion)):
        own = read.completion.token_ids[at]
        chances = slow_chances(setting, read, [*read.completion.token_ids[:at]])
        expected = sorted(
            (token for token, chance in enumerate(chances) if token != own), key=lambda one: -chances[one]
        )
        found = engine_of(setting).likely(read, at, 3, 0.02)
        assert [*found] == [own, *(token for token in expected[:3] if chances[token] >= 0.02)]
        assert found == pytest.approx({token: chances[token] for token in found}, rel=2e-5, abs=1e-9)
        assert engine_of(setting).likely(read, at, 3, [*found.values()][-1]).keys() >= found.keys()
        entropy = torch.special.entr(torch.tensor(chances, dtype=torch.float64)).sum()
        assert read.entropies[at] == pytest.approx(float(entropy), abs=1e-4)


def test_branches_do_not_depend_on_each_other(setting: Setting) -> None:
    read = read_one(setting, DRAWN)
    begun = branches_of(setting, read)
    together = engine_of(setting, 64).sample(read, begun)
    alone = [replace(engine_of(setting).sample(read, [one])[0], index=index) for index, one in enumerate(begun)]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.index for one in together] == [*range(len(begun))]


def test_an_end_ends_and_the_last_position_is_the_last(setting: Setting) -> None:
    read = read_one(setting, SAMPLINGS["short"], 0)
    own = read.completion.token_ids
    assert len(own) == 4
    ended: list[int] = []
    begun = [(1, ENDS[1]), (3, 60), (0, ENDS[0]), (3, ENDS[0])]
    made = engine_of(setting).sample(read, begun, on_finished=ended.append)
    assert [(one.token_ids, one.stop_reason) for one in made] == [
        ((own[0], ENDS[1]), StopReason.END),
        ((*own[:3], 60), StopReason.LENGTH),
        ((ENDS[0],), StopReason.END),
        ((*own[:3], ENDS[0]), StopReason.END),  # in the last place too
    ]
    assert sum(ended) == 4


def test_a_branch_computes_its_own_tokens_alone(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPRL_KERNELS", "off")  # so that all tokens pass through the embedding
    monkeypatch.setattr("grouprl.forward.attention.padded_rows", lambda rows, *_, **__: rows)  # tokens, no padding
    counts: list[int] = []
    seen = setting.model.get_input_embeddings().register_forward_hook(
        lambda _, given, __: counts.append(given[0].numel())
    )
    request = setting.request(2, 1)
    ids = tuple(range(60, 80))
    completion = Completion(0, ids, (0.0,) * 20, (0.0,) * 20, "", StopReason.LENGTH, 0)
    engine = engine_of(setting)
    read = engine.read(request, completion, DRAWN)
    assert sum(counts) == read.tokens == len(request.prompt_ids) + 19
    begun = [(at, 100) for at in range(20)]
    made = engine.sample(read, begun)
    seen.remove()
    assert sum(counts) - read.tokens == sum(len(one) - at - 1 for one, (at, _) in zip(made, begun, strict=True))
