"""The token ids that are trained are the ids that were given and drawn, whatever the template, the ends or the padding
say: masks go by length, and no text is encoded twice."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from engine_setting import ENDS
from grouprl.learner import make_batch
from grouprl.learner.packs import make_packs, pack_forward
from grouprl.models.load import context_length, load_model, load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Batch, Completion, Group, Problem, Sampling, StopReason, UserError
from learner_setting import learn, learner_of
from oracles import own_logits, own_model
from templates import BOS, STYLES, styled_tokenizer
from tiny import tiny_model_folder

CPU = torch.device("cpu")
SYSTEMS = st.sampled_from(["", "Think first.", "  Answer with a number. "])
TEXTS = st.sampled_from(
    ["4 + 5 = ?", " There are 6 pens.\n", "a", "<think>\n7 left\n</think>\n\n7", "\n\n12 ", "</think>"]
)
ALL_ADDS = ("$A", f"{BOS} $A", "$A <|end|>", f"{BOS} $A <|end|>")


def ids_of(prompt: object, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return list(prompt_token_ids(Problem("p", prompt), tokenizer, longest=10_000))  # type: ignore[arg-type]


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=25)
@given(system=SYSTEMS, contents=st.lists(TEXTS, min_size=1, max_size=5).filter(lambda texts: len(texts) % 2))
def test_messages_are_the_ids_of_the_rendered_text(style: str, system: str, contents: list[str]):
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]
    messages = ([{"role": "system", "content": system}] if system else []) + turns
    expected = STYLES[style].rendered(system, turns)
    for adds in ALL_ADDS:  # a template writes its own special tokens: none of the tokenizer's come on top
        tokenizer = TOKENIZERS[style, adds]
        ids = ids_of(tuple(messages), tokenizer)
        assert tokenizer.decode(ids) == expected
        assert ids.count(tokenizer.bos_token_id) == STYLES[style].has_bos
        assert STYLES[style].has_bos == (ids[0] == tokenizer.bos_token_id)


TOKENIZERS = {(style, adds): styled_tokenizer(style, adds=adds) for style in STYLES for adds in ALL_ADDS}


@pytest.mark.parametrize("adds", ALL_ADDS)
@given(text=TEXTS, begins=st.booleans())
def test_a_plain_text_has_one_bos_and_no_end(adds: str, text: str, begins: bool):
    tokenizer = TOKENIZERS["llama", adds]
    own = tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = [tokenizer.bos_token_id] * (begins or adds.startswith(BOS)) + own
    assert ids_of(BOS * begins + text, tokenizer) == expected


def test_an_end_token_that_the_text_names_stays():
    """A few-shot prompt may separate its examples by the end token."""
    tokenizer = TOKENIZERS["llama", "$A <|end|>"]
    assert ids_of("2 + 2 = 4<|end|>", tokenizer)[-1] == tokenizer.eos_token_id
    assert ids_of("2 + 2 = 4<|end|>", tokenizer).count(tokenizer.eos_token_id) == 1


# What the learner trains

TOKEN = st.integers(0, 319)  # 0 pads, 1 ends, and any other may end as well


@given(
    rows=st.lists(
        st.tuples(
            st.lists(TOKEN, min_size=1, max_size=6),
            st.lists(st.tuples(st.lists(TOKEN, max_size=7), st.booleans()), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=4,
    ),
    budget=st.sampled_from([1, 12, 30, 10**6]),
    read_last=st.booleans(),
)
def test_any_ids_are_read_and_trained_once_each_in_their_places(
    rows: list[tuple[list[int], list[tuple[list[int], bool]]]], budget: int, read_last: bool
):
    groups = [
        Group(Problem(str(n), ""), tuple(prompt), tuple(completion(i, ids, cut) for i, (ids, cut) in enumerate(own)))
        for n, (prompt, own) in enumerate(rows)
    ]
    batch, flat = make_batch(groups, Sampling(max_tokens=7)), [one for group in groups for one in group.completions]
    assert [row[mask].tolist() for row, mask in zip(batch.token_ids_NT, batch.mask_NT, strict=True)] == [
        list(one.token_ids) for one in flat
    ]
    seen: dict[tuple[int, int], int] = {}
    for pack in make_packs(batch, range(len(flat)), budget, CPU, read_last=read_last):
        for token, row, column in zip(
            pack.token_ids_C.tolist(), pack.row_C.tolist(), pack.column_C.tolist(), strict=True
        ):
            assert (pack.rows[row], column) not in seen
            seen[pack.rows[row], column] = token
    assert seen == {(n, t): token for n, one in enumerate(flat) for t, token in enumerate(one.token_ids)}


def completion(index: int, ids: list[int], cut: bool = False) -> Completion:
    known = (-1.0,) * len(ids)
    return Completion(index, tuple(ids), known, known, "", StopReason.LENGTH if cut else StopReason.END, 0)


def learner_logprobs(model: PreTrainedModel, batch: Batch) -> dict[int, list[float]]:
    found = {}
    for pack in make_packs(batch, range(len(batch.group_of_N)), 40, CPU):
        values_C = pack_forward(model, pack, batch.sampling).logprobs_C
        for place, row in enumerate(pack.rows):
            found[row] = values_C[pack.row_C == place].tolist()
    return found


def plain_logprobs(own: PreTrainedModel, group: Group, one: Completion) -> list[float]:
    with torch.no_grad():
        logits_TV = own_logits(own, group.prompt_ids, one.token_ids)
    return logits_TV.log_softmax(-1)[range(len(one)), list(one.token_ids)].tolist()


@torch.no_grad()
@pytest.mark.parametrize("pad", ["its own", "the end"])
def test_pad_and_end_tokens_inside_are_read_like_any_other(tiny: Path, pad: str):
    """Ids that pad or end, inside a prompt or a completion, count: a mask by value would skip them."""
    model, tokenizer = load_model(str(tiny), device=CPU), load_tokenizer(str(tiny))
    if pad == "the end":
        tokenizer.pad_token = tokenizer.eos_token
        model.config.pad_token_id = tokenizer.eos_token_id
    groups = [
        Group(Problem("a", ""), (0, 1, 50, 0), (completion(0, [0, 1, 60, 1, 0]), completion(1, [1]))),
        Group(Problem("b", ""), (1,), (completion(0, [0, 0, 0]), completion(1, [70, 1]))),
    ]
    found, own = learner_logprobs(model, make_batch(groups, Sampling())), own_model(tiny)
    expected = [plain_logprobs(own, group, one) for group in groups for one in group.completions]
    for row, values in enumerate(expected):
        assert found[row] == pytest.approx(values, abs=2e-5)


def test_a_completion_without_tokens_neither_trains_nor_stops_the_step(tiny: Path):
    """An engine that returns nothing for a prompt: the others of the group learn as they would."""
    model = load_model(str(tiny), device=CPU)
    some = [completion(0, [60, 61, 1]), completion(1, [70, 1])]
    empty = completion(2, [])
    learned = {}
    for name, rows in (("with", [*some, empty]), ("last", [empty, *some])):
        groups = [Group(Problem("a", ""), (5, 6), tuple(replace(one, index=n) for n, one in enumerate(rows)))]
        advantages = torch.tensor([{3: 1.0, 2: -1.0, 0: 0.5}[len(one)] for one in rows])
        learner = learner_of(model)
        learned[name] = learn(learner, make_batch(groups, Sampling()), advantages) | {
            "gradient": learner.optimizer.gradient["model.norm.weight"]  # type: ignore[attr-defined]
        }
    assert learned["with"]["loss"] == pytest.approx(learned["last"]["loss"], abs=1e-6)
    torch.testing.assert_close(learned["with"]["gradient"], learned["last"]["gradient"])
    assert learned["with"]["gradient"].abs().max() > 0


# The context


@pytest.mark.parametrize("room", [0, 1])
def test_a_prompt_at_the_limit_of_the_context_is_read_whole_and_one_more_is_refused(tmp_path: Path, room: int):
    folder = tiny_model_folder(tmp_path, context=24)
    model, tokenizer = load_model(str(folder), device=CPU), load_tokenizer(str(folder))
    sampling = Sampling(max_tokens=8)
    longest = context_length(model) - sampling.max_tokens
    ids = (tokenizer("There are 4 boxes with 6 pens each. 4 * 6 = 24.")["input_ids"] * 3)[: longest - room]
    text = tokenizer.decode(ids)
    assert prompt_token_ids(Problem("p", text), tokenizer, longest=longest) == tuple(ids)
    with pytest.raises(UserError, match=rf"expected a prompt of 1 to {len(ids) - 1} tokens.*got {len(ids)}"):
        prompt_token_ids(Problem("p", text), tokenizer, longest=len(ids) - 1)
    engine = NativeEngine(model, tokenizer, seed=0, max_rows=4)
    group = engine.generate([Request(Problem("p", text), tuple(ids), 4)], sampling)[0]
    assert {len(one) for one in group.completions if one.stop_reason is StopReason.LENGTH} == {8}
    own = own_model(folder)
    for one in group.completions:
        assert one.logprobs == pytest.approx(plain_logprobs(own, group, one), abs=2e-5)


def test_what_was_drawn_is_what_is_trained(tiny: Path):
    """The ids of a sampled group go into the batch as they are: its text, encoded again, would give others."""
    model, tokenizer = load_model(str(tiny), device=CPU), load_tokenizer(str(tiny))
    model.generation_config.eos_token_id = ENDS
    prompt = prompt_token_ids(Problem("p", "John has 15 apples"), tokenizer, longest=99)
    group = NativeEngine(model, tokenizer, seed=0, max_rows=32).generate(
        [Request(Problem("p", "John has 15 apples"), prompt, 32)], Sampling(max_tokens=12)
    )[0]
    again = [tokenizer(one.text, add_special_tokens=False)["input_ids"] for one in group.completions]
    assert any(list(one.token_ids) != ids for one, ids in zip(group.completions, again, strict=True))
    batch = make_batch([group], Sampling(max_tokens=12))
    rows = zip(batch.token_ids_NT, batch.trained_NT, group.completions, strict=True)
    for ids_T, trained_T, one in rows:
        assert tuple(ids_T[trained_T].tolist()) == one.token_ids
        if one.stop_reason is StopReason.END:
            assert one.token_ids[-1] in ENDS  # whichever it was, it is trained
            assert not set(one.token_ids[:-1]) & set(ENDS)
