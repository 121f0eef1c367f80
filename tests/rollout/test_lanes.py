"""Decoding in lanes: completions are the same bits on any number of threads."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from few_rows import pretend_processor
from grouprl.forward.workers import interleaved
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Group, Problem, Sampling

PROMPTS = ("1 + 2 =", "a longer prompt than the other ones", "7", "how many?", "2 * 3")


def generated(tiny: Path, threads: int, rows: int, completions: int, sampling: Sampling) -> list[Group]:
    model, tokenizer = load_model(str(tiny), device=torch.device("cpu")), load_tokenizer(str(tiny))
    requests = [
        Request(Problem(str(index), text), tuple(tokenizer(text)["input_ids"]), completions)
        for index, text in enumerate(PROMPTS * 4)
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    finished: list[int] = []
    groups: list[tuple[int, Group]] = []
    try:
        made = NativeEngine(model, tokenizer, seed=3, max_rows=rows).generate(
            requests, sampling, on_finished=finished.append, on_group=lambda index, group: groups.append((index, group))
        )
    finally:
        torch.set_num_threads(before)
    assert sum(finished) == completions * len(requests)
    assert sorted(index for index, _ in groups) == list(range(len(requests)))
    assert all(made[index] is group for index, group in groups)
    return made


@pytest.mark.parametrize("fewest", [0, 16])
def test_completions_are_the_same_bits_for_any_number_of_threads(
    tiny: Path, fewest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On this processor, and on one that is pretended."""
    pretend_processor(monkeypatch, tmp_path, fewest=fewest)
    sampling = Sampling(max_tokens=20, temperature=0.9, top_p=0.98)
    one = generated(tiny, 1, 32, 6, sampling)
    assert len({completion.token_ids for group in one for completion in group.completions}) > 60
    for threads in (2, 3):
        assert generated(tiny, threads, 32, 6, sampling) == one


def test_a_group_wider_than_a_lane_is_divided(tiny: Path):
    sampling = replace(Sampling(max_tokens=6), temperature=1.3)
    assert generated(tiny, 4, 64, 40, sampling) == generated(tiny, 1, 64, 40, sampling)


def counted(last: int) -> Iterator[int]:
    yield from range(last)


def failing(after: int) -> Iterator[int]:
    yield from range(1, after + 1)
    raise ValueError("the stream failed")


def test_streams_yield_all_that_is_not_empty():
    assert sorted(interleaved([lambda: counted(4), lambda: counted(3)], 2)) == [1, 1, 2, 2, 3]
    assert list(interleaved([lambda: counted(4)], 1)) == [1, 2, 3]


def test_a_failure_of_a_stream_ends_all():
    def endless() -> Iterator[int]:
        while True:
            yield 1

    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="the stream failed"):
        list(interleaved([endless, lambda: failing(3)], 2))
    assert torch.get_num_threads() == before
