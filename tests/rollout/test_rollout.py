"""The native engine: the tokens that it draws, their probabilities, and the independence of a row from all others."""

import ctypes
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from engine_setting import DRAWN, ENDS, PROMPTS, Setting, all_of, assert_same, setting_of
from grouprl.kernels import calibration, compiled_weights
from grouprl.kernels.build import library
from grouprl.kernels.compiled_weights import Torch, torch_functions
from grouprl.kernels.llama_form import has_llama_form
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_model
from grouprl.models.save import save_model
from grouprl.rollout import NativeEngine, Request
from grouprl.supervised.scratch import new_tokenizer
from grouprl.types import Completion, Group, Problem, Sampling, StopReason
from lora_models import LORA
from oracles import own_logits, slow_policy
from tiny import TEXTS, tiny_model_folder

needs_compiler = pytest.mark.skipif(library() is None, reason="no C compiler")


@pytest.fixture(scope="module")
def setting(tiny: Path) -> Setting:
    return setting_of(tiny)


@pytest.fixture(scope="module")
def drawn(setting: Setting) -> list[Group]:
    return setting.engine().generate(setting.requests(), DRAWN)


# Greedy


@pytest.mark.parametrize(("kind", "kv_heads"), [("qwen2", 2), ("llama", 4), ("qwen3", 1)])
@torch.no_grad()
def test_greedy_equals_generate(tmp_path: Path, kind: str, kv_heads: int):
    setting = setting_of(tiny_model_folder(tmp_path, kind=kind, kv_heads=kv_heads))
    requests = [setting.request(number, 2) for number in range(len(PROMPTS))]
    groups = setting.engine(max_rows=6).generate(requests, Sampling(max_tokens=20, temperature=0.0))
    for group in groups:
        prompt = torch.tensor([group.prompt_ids])
        expected = setting.own.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=ENDS,
            pad_token_id=0,
        )[0, prompt.shape[1] :].tolist()
        for completion in group.completions:
            assert list(completion.token_ids) == expected
            assert set(completion.logprobs) == {0.0}
            plain = own_logits(setting.own, group.prompt_ids, expected).log_softmax(-1)
            assert completion.plain_logprobs == pytest.approx(plain.amax(-1).tolist(), abs=1e-5)


@pytest.mark.parametrize("window", [3, 12])
@torch.no_grad()
def test_a_window_hides_the_older_tokens_of_prompt_and_completion(tiny: Path, tmp_path: Path, window: int):
    shutil.copytree(tiny, tmp_path / "windowed")
    path = tmp_path / "windowed" / "config.json"
    layers = {"layer_types": ["sliding_attention", "full_attention"], "max_window_layers": 0}
    changes = {"use_sliding_window": True, "sliding_window": window, **layers}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    setting = setting_of(tmp_path / "windowed")
    if library() is not None:
        assert has_llama_form(setting.model.get_decoder())
    for group in setting.engine(3).generate(setting.requests()[1:4], Sampling(max_tokens=24)):
        for completion in group.completions:
            logits = own_logits(setting.own, group.prompt_ids, completion.token_ids)
            expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


USED, LEFT = {"sliding_window": 100, "use_sliding_window": True}, {"sliding_window": 100}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
WINDOWED = {
    "a key that Llama ignores": ("llama", LEFT),
    "layers that Llama ignores": ("llama", LEFT | ALTERNATING),
    "chunks that Llama ignores": ("llama", {"attention_chunk_size": 100}),
    "a key that OLMoE asks its attention for and leaves out of its mask": ("olmoe", LEFT),
    "a key that StableLM ignores, which runs in rows": ("stablelm", LEFT),
    "a switch that is off": ("qwen2", {"sliding_window": 100, "use_sliding_window": False}),
    "every layer": ("qwen3", USED | {"max_window_layers": 0}),
    "one layer": ("qwen2", USED | {"max_window_layers": 1}),
    "named layers": ("qwen2", USED | ALTERNATING),
    "Mistral": ("mistral", LEFT),
    "Mistral without a window": ("mistral", {"sliding_window": None}),
    "Gemma's alternating layers": ("gemma2", LEFT),
    "GPT-OSS": ("gpt_oss", LEFT | ALTERNATING),
    "a state besides, which runs in rows": ("lfm2", LEFT),
}


@pytest.mark.parametrize(("kind", "keys"), WINDOWED.values(), ids=WINDOWED.keys())
@torch.no_grad()
def test_the_window_is_that_of_the_models_full_forward_pass(kind: str, keys: dict[str, object], tmp_path: Path):
    tokenizer = new_tokenizer(TEXTS * 3, 320)
    shape = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256}
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    layers = {"layer_types": ["conv", "full_attention"]} if kind == "lfm2" else {}
    own = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape, **experts, **layers))
    for name, weight in own.named_parameters():  # drawn wide: in a nearly uniform model no mask has an effect
        weight.copy_(torch.randn(weight.shape) * 0.2 + ("norm" in name))
    save_model(own, tokenizer, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    own = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    engine = NativeEngine(load_model(str(tmp_path), device=torch.device("cpu")), tokenizer, seed=0, max_rows=2)
    prompt = tuple((3 + 7 * at) % 300 for at in range(150))
    [group] = engine.generate([Request(Problem("long", "long"), prompt, 2)], Sampling(max_tokens=12))
    for completion in group.completions:
        logits = own_logits(own, group.prompt_ids, completion.token_ids)
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


# The same completion whatever surrounds it


def test_the_groups_are_complete_and_in_order(setting: Setting, drawn: list[Group]):
    assert [group.problem.id for group in drawn] == [f"problem-{number}" for number in range(5)]
    assert [[completion.index for completion in group.completions] for group in drawn] == [
        list(range(count)) for count in (7, 1, 4, 2, 8)
    ]
    everything = [completion.token_ids for group in drawn for completion in group.completions]
    assert len(set(everything)) == len(everything)
    for group in drawn:
        for completion in group.completions:
            decoded = setting.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            assert completion.text == decoded
            assert len(completion.logprobs) == len(completion.plain_logprobs) == len(completion)


@pytest.mark.parametrize("max_rows", [1, 3, 22])
def test_completions_do_not_depend_on_the_rows_decoded_at_once(setting: Setting, drawn: list[Group], max_rows: int):
    assert_same(setting.engine(max_rows).generate(setting.requests(), DRAWN), drawn)


def test_completions_do_not_depend_on_the_rest_of_the_batch(setting: Setting, drawn: list[Group]):
    for at, request in enumerate(setting.requests()):
        assert_same(setting.engine().generate([request], DRAWN), [drawn[at]])
    few = setting.engine().generate([setting.request(4, 3)], DRAWN)[0]
    assert [c.token_ids for c in few.completions] == [c.token_ids for c in drawn[4].completions[:3]]


def test_an_engine_that_was_used_before_draws_the_same(setting: Setting, drawn: list[Group]):
    engine = setting.engine(10)
    engine.generate([setting.request(1, 2)], Sampling(max_tokens=3, temperature=0.0))  # room that is soon too small
    for max_tokens in (40, 2):
        engine.generate([setting.request(2, 10, "another"), setting.request(1, 3)], Sampling(max_tokens=max_tokens))
    assert_same(engine.generate(setting.requests(), DRAWN), drawn)


def test_new_weights_are_used_at_once(tiny: Path):
    setting = setting_of(tiny)
    engine, requests = setting.engine(), setting.requests()
    before = engine.generate(requests, DRAWN)
    with torch.no_grad():
        for weight in setting.model.parameters():
            weight.mul_(1.1)
    engine.load_weights(5)
    after = engine.generate(requests, DRAWN)
    assert_same(after, setting.engine().generate(requests, DRAWN))
    assert [c.token_ids for c in after[4].completions] != [c.token_ids for c in before[4].completions]
    assert {c.weights_version for group in before for c in group.completions} == {0}
    assert {c.weights_version for group in after for c in group.completions} == {5}


def test_seed_and_stream_and_problem_choose_the_completion(setting: Setting, drawn: list[Group]):
    expected = [completion.token_ids for completion in drawn[0].completions]
    renamed = Request(Problem("another", ""), drawn[0].prompt_ids, 7)
    for engine, request in (
        (setting.engine(seed=1), setting.request(0, 7)),
        (setting.engine(), setting.request(0, 7, "epoch 1")),
        (setting.engine(), renamed),
    ):
        got = [completion.token_ids for completion in engine.generate([request], DRAWN)[0].completions]
        assert not set(got) & set(expected)


def test_the_global_generator_does_not_change(setting: Setting, drawn: list[Group]):
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert_same(setting.engine().generate(setting.requests(), DRAWN), drawn)
    assert torch.equal(torch.get_rng_state(), state)


def test_on_group_gets_a_group_as_soon_as_it_is_complete(setting: Setting):
    made: dict[int, Group] = {}
    sampled_then: list[int] = []
    reports: list[int] = []

    def hand_over(place: int, group: Group) -> None:
        assert place not in made
        made[place] = group
        sampled_then.append(sum(reports))

    groups = setting.engine(6).generate(setting.requests(), DRAWN, on_finished=reports.append, on_group=hand_over)
    assert [made[place] for place in range(len(groups))] == groups
    assert sampled_then[0] < 22  # others were still being sampled


# Log-probs


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=16, temperature=1.3, top_k=7),
        Sampling(max_tokens=16, temperature=0.7, top_k=50, top_p=0.9, min_p=0.02),
        Sampling(max_tokens=16, temperature=0.7, top_p=0.9, repetition_penalty=0.8),
    ],
    ids=str,
)
@torch.no_grad()
def test_log_probs_are_those_of_a_full_forward(setting: Setting, sampling: Sampling):
    for group in setting.engine(3).generate(setting.requests()[1:4], sampling):
        for completion in group.completions:
            logits = own_logits(setting.own, group.prompt_ids, completion.token_ids)
            pairs = list(zip(logits.tolist(), completion.token_ids, strict=True))
            policy = [
                math.log(slow_policy(row, sampling, before=(*group.prompt_ids, *completion.token_ids[:place]))[token])
                for place, (row, token) in enumerate(pairs)
            ]
            plain = [math.log(slow_policy(row, Sampling())[token]) for row, token in pairs]
            assert completion.logprobs == pytest.approx(policy, abs=1e-5)
            assert completion.plain_logprobs == pytest.approx(plain, abs=1e-5)


def test_tokens_are_drawn_with_their_probabilities(setting: Setting):
    """The first tokens of 2,000 completions, and the second tokens after the most common first, fit the softmax."""
    sampling = Sampling(max_tokens=2, temperature=0.8, top_k=40)
    request = setting.request(1, 2000)
    completions = setting.engine(1000).generate([request], sampling)[0].completions
    first = [completion.token_ids[0] for completion in completions]
    assert_drawn_from(setting, request.prompt_ids, first, sampling)
    common = max({*first} - {*ENDS}, key=first.count)
    second = [c.token_ids[1] for c in completions if c.token_ids[0] == common]
    assert len(second) > 150
    assert_drawn_from(setting, (*request.prompt_ids, common), second, sampling)


@torch.no_grad()
def assert_drawn_from(setting: Setting, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling) -> None:
    policy = torch.tensor(slow_policy(own_logits(setting.own, prompt, [0])[0].tolist(), sampling))
    expected = policy * len(tokens)
    counts = torch.bincount(torch.tensor(tokens), minlength=len(policy))
    assert counts[policy == 0].sum() == 0
    large = expected >= 5
    cells = [(counts[large], expected[large]), (counts[~large].sum()[None], expected[~large].sum()[None])]
    statistic = sum(float(((n - e) ** 2 / e.clamp(min=1e-9)).sum()) for n, e in cells)
    freedom = int(large.sum())
    assert freedom >= 10
    assert abs(statistic - freedom) / math.sqrt(2 * freedom) < 4


# Ends


def test_any_end_token_ends_a_completion_and_is_kept(drawn: list[Group]):
    ended = [c for c in all_of(drawn) if c.stop_reason is StopReason.END]
    cut = [c for c in all_of(drawn) if c.stop_reason is StopReason.LENGTH]
    assert len(ended) + len(cut) == 22
    assert len(ended) > 5
    assert len({completion.token_ids[-1] for completion in ended}) > 3
    assert all(completion.token_ids[-1] in ENDS for completion in ended)
    assert all(len(completion) == 24 and completion.token_ids[-1] not in ENDS for completion in cut)
    assert not any(token in ENDS for completion in all_of(drawn) for token in completion.token_ids[:-1])


@pytest.mark.parametrize("max_tokens", [1, 7])
def test_max_tokens_only_shortens(setting: Setting, drawn: list[Group], max_tokens: int):
    shorter = all_of(setting.engine(4).generate(setting.requests(), Sampling(max_tokens=max_tokens)))
    for short, long in zip(shorter, all_of(drawn), strict=True):
        assert short.token_ids == long.token_ids[:max_tokens]
        ends = short.token_ids[-1] in ENDS
        assert short.stop_reason is (StopReason.END if ends else StopReason.LENGTH)


def until_stop(tokenizer: PreTrainedTokenizerBase, completion: Completion, stops: Sequence[str]) -> int:
    """Tokens up to the first prefix whose text holds a stop string."""
    for count in range(1, len(completion) + 1):
        text = tokenizer.decode(completion.token_ids[:count], skip_special_tokens=True)
        if any(stop in text for stop in stops):
            return count
    return len(completion)


def seams(tokenizer: PreTrainedTokenizerBase, completion: Completion) -> list[str]:
    """The two characters around each boundary between readable tokens."""
    words = [tokenizer.decode([token], skip_special_tokens=True) for token in completion.token_ids]
    readable = [word if word.isascii() and word.isprintable() else "" for word in words]
    return [left[-1] + right[0] for left, right in pairwise(readable) if left and right]


@pytest.mark.parametrize("max_rows", [3, 64])
def test_stop_strings_end_a_completion_at_once_and_stay(setting: Setting, drawn: list[Group], max_rows: int):
    cut = [c for c in all_of(drawn) if c.stop_reason is StopReason.LENGTH]
    ended = next(c for c in all_of(drawn) if c.stop_reason is StopReason.END)
    others = [c for c in all_of(drawn) if c is not ended and c not in cut]
    found = [seam for completion in others for seam in seams(setting.tokenizer, completion)[:1]]
    spanning = [seam for seam in found if not any(seam in completion.text for completion in cut)][:4]
    assert spanning
    stops = (*spanning, setting.tokenizer.decode([ended.token_ids[-1]]))  # the last is an end token as well
    sampling = Sampling(max_tokens=24, stop=stops)
    stopped = all_of(setting.engine(max_rows).generate(setting.requests(), sampling))
    reasons = []
    for got, free in zip(stopped, all_of(drawn), strict=True):
        count = until_stop(setting.tokenizer, free, stops)
        assert got.token_ids == free.token_ids[:count]
        found = any(stop in got.text for stop in stops)
        at_end = got.token_ids[-1] in ENDS
        expected = StopReason.END if at_end else StopReason.STOP_STRING if found else StopReason.LENGTH
        assert got.stop_reason is expected
        reasons.append(got.stop_reason)
    assert set(reasons) == set(StopReason)
    assert reasons[all_of(drawn).index(ended)] is StopReason.END


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's products fail in decode steps."""
    refuse = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)(lambda out, left, right: 1)
    plain = torch_functions(torch.float32)
    assert plain is not None
    refusing = Torch(
        plain.create,
        plain.destroy,
        ctypes.cast(refuse, ctypes.c_void_p).value,
        plain.multiply_add,
        plain.dtype,
        plain.device_type,
    )
    monkeypatch.setattr(compiled_weights, "torch_functions", lambda dtype: refusing)


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of any size is large enough for the products of the kernels."""
    monkeypatch.setattr(compiled_weights, "_DIRECT_FROM", 0)
    monkeypatch.setattr(calibration, "_kernel_wins", lambda *_: True)


@needs_compiler
@pytest.mark.usefixtures("refused")
def test_a_product_that_torch_refuses_is_an_error(setting: Setting):
    with pytest.raises(RuntimeError, match="got error 1"):
        setting.engine(4).generate(setting.requests(), Sampling(max_tokens=4))


@needs_compiler
@pytest.mark.usefixtures("refused", "direct")
@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
@torch.no_grad()
def test_a_large_model_decodes_without_products_of_torch(tmp_path: Path, kind: str):
    setting = setting_of(tiny_model_folder(tmp_path, kind=kind, kv_heads=2))
    groups = setting.engine(max_rows=40).generate(setting.requests(), DRAWN)
    assert_same(setting.engine(max_rows=8).generate(setting.requests(), DRAWN), groups)
    for group in groups:
        for completion in group.completions:
            plain = own_logits(setting.own, group.prompt_ids, completion.token_ids).log_softmax(-1)
            expected = plain.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            assert completion.plain_logprobs == pytest.approx(expected.tolist(), abs=1e-5)


@needs_compiler
def test_a_large_model_decodes_with_an_adapter(setting: Setting, tiny: Path, request: pytest.FixtureRequest):
    model = add_adapter(load_model(str(tiny), device=torch.device("cpu")), LORA, seed=0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    adapted = replace(setting, model=model)
    plain = adapted.engine(max_rows=12).generate(setting.requests(), DRAWN)
    assert plain != setting.engine(max_rows=12).generate(setting.requests(), DRAWN)
    request.getfixturevalue("direct")
    assert_same(adapted.engine(max_rows=12).generate(setting.requests(), DRAWN), plain)
