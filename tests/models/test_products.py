"""A row of a product has the same bits among any number of rows, on the machine at hand and on a pretended one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from few_rows import pretend_processor
from grouprl.forward import products
from grouprl.forward.attention import NAME, Rule, exact_attention, hidden_states
from grouprl.forward.compiled import kernels
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.logprobs import token_logprobs
from grouprl.forward.products import EqualRows, equal_rows, padded_call, padded_rows, product_sizes
from grouprl.kernels.compiled_forward import CompiledForward
from grouprl.kernels.compiled_weights import CompiledWeights
from grouprl.models.load import load_model
from grouprl.rollout.cache import CacheShape
from grouprl.rollout.rows import Rows
from grouprl.terms.critic import Critic
from grouprl.types import Sampling

CPU, MANY = torch.device("cpu"), 200
UNPADDED = EqualRows(1)


@pytest.fixture
def unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that keeps what is measured; nothing is yet."""
    monkeypatch.setattr(products, "_file", lambda: tmp_path / "products.json")
    monkeypatch.setattr(products, "_KNOWN", {})
    return tmp_path / "products.json"


@torch.no_grad()
def differing(layer: nn.Linear) -> list[int]:
    """The numbers of rows up to 64 at which `padded_call` gives rows other bits than among many."""
    x = torch.randn(MANY, layer.in_features, generator=torch.Generator().manual_seed(1)).to(layer.weight.dtype)
    among = padded_call(layer, x)
    return [n for n in range(1, 65) if not torch.equal(padded_call(layer, x[n : 2 * n]), among[n : 2 * n])]


def layer_of(inner: int, outer: int, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(inner)
    return nn.Linear(inner, outer, bias=False).to(dtype)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_here_a_row_has_the_same_bits_among_any_rows(dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch):
    """The shapes are the built-in model's, and those of an adapter and of a layer with one output."""
    sizes = [*sorted(product_sizes(load_model("abacus", device=CPU))), (96, 8), (8, 96), (64, 1)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        layers = [layer_of(*size, dtype) for size in sizes]
        for layer in layers:
            assert equal_rows(product_sizes(layer), dtype).holds, (layer, "see `grouprl doctor` for what helps")
            assert differing(layer) == [], layer
        needed = max(equal_rows(product_sizes(layer), dtype).fewest for layer in layers)
        # No limit is higher than it has to be: without padding rows differ exactly where it is above 1.
        monkeypatch.setattr(products, "equal_rows", lambda *_: UNPADDED)
        monkeypatch.setattr(products, "_DECODE_ROWS", 1)
        assert any(map(differing, layers)) == (needed > 1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("fewest", "multiple", "found"),
    [
        (1, 1, EqualRows(1)),
        (16, 1, EqualRows(16)),
        (37, 1, EqualRows(37)),
        (5, 4, EqualRows(8, 4)),
        (64, 1, EqualRows(64)),
        (65, 1, EqualRows(16, 16, holds=False)),
    ],
)
def test_the_limit_of_a_processor_is_measured_once(
    fewest: int, multiple: int, found: EqualRows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    layer = layer_of(64, 96)
    # In one order of sums, whatever the number of rows is.
    monkeypatch.setattr(
        products.F, "linear", lambda x, weight, bias: (x.double()[:, None] * weight.double()).sum(-1).float()
    )
    file = pretend_processor(monkeypatch, tmp_path, fewest=fewest, multiple=multiple)
    sizes = product_sizes(layer)
    assert equal_rows(sizes, torch.float32) == found
    assert list(json.loads(file.read_text()).values()) == [list(map(int, found))]
    for damaged in ("", "[]", '{"(64, 96) torch.float32 1": [1]}', "{"):
        file.write_text(damaged)
        monkeypatch.setattr(products, "_KNOWN", {})
        assert equal_rows(sizes, torch.float32) == found
    monkeypatch.setattr(products, "_KNOWN", {})
    monkeypatch.setattr(products, "_measured", None)
    assert equal_rows(sizes, torch.float32) == found  # from the file
    assert [padded_rows(n, torch.float32, sizes) for n in (1, 70)] == [
        found.fewest,
        -(-70 // found.multiple) * found.multiple,
    ]


HEAD, HIDDEN, TARGETS = layer_of(64, 300), torch.randn(90, 64), torch.arange(90)


@pytest.mark.parametrize("fewest", [0, 16])
@pytest.mark.parametrize("sampling", [Sampling(max_tokens=1), Sampling(max_tokens=1, top_p=0.9)], ids=["all", "top-p"])
@torch.no_grad()
def test_log_probs_and_values_have_the_same_bits_in_chunks_of_any_size(
    sampling: Sampling, fewest: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The last chunk has the rows that are left, 1 to all."""
    pretend_processor(monkeypatch, tmp_path, fewest=fewest)
    critic = Critic(load_model("abacus", device=CPU), shared=True)
    nn.init.normal_(critic.head.weight)
    hidden = torch.randn(90, critic.head.in_features)
    among = token_logprobs(HEAD, HIDDEN, TARGETS, sampling), critic.values(hidden)
    for count in (*range(1, 18), 31, 32, 33, 63, 64, 65, 89):
        for chunk in (300 * 8, 300 * 8 * 20, 1 << 25):
            got = token_logprobs(HEAD, HIDDEN[:count], TARGETS[:count], sampling, chunk_elements=chunk)
            assert all(torch.equal(ours, theirs[:count]) for ours, theirs in zip(got, among[0], strict=True)), (
                count,
                chunk,
            )
        assert torch.equal(critic.values(hidden[:count]), among[1][:count])


@pytest.mark.parametrize("way", ["kernels", "modules"])
@torch.no_grad()
def test_a_packed_group_has_the_same_bits_among_others(way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Modules attend over padded groups, so here all are equally long."""
    pretend_processor(monkeypatch, tmp_path)
    model = load_model("abacus", device=CPU)
    if way == "modules":
        model.get_decoder().register_forward_hook(lambda *_: None)
    elif kernels() is None:
        pytest.skip("no C compiler")
    alone, among = TreeLayout((3,), ((2, 2),), CPU), TreeLayout((3,) * 4, ((2, 2),) * 4, CPU)
    ids = torch.arange(7, 35)
    expected = hidden_states(model, ids, among.position_ids_S, among)
    assert torch.equal(hidden_states(model, ids[:7], alone.position_ids_S, alone), expected[:7])
    monkeypatch.setattr("grouprl.forward.attention.padded_rows", lambda rows, *_, **__: rows)
    monkeypatch.setattr("grouprl.kernels.llama_form.padded_rows", lambda rows, *_, **__: rows)
    assert not torch.equal(hidden_states(model, ids[:7], alone.position_ids_S, alone), expected[:7])


@pytest.mark.parametrize("vocabulary", [120_000, 140_000])
@torch.no_grad()
def test_a_decoded_row_has_the_same_bits_among_any_rows_on_both_sides_of_the_limit(vocabulary: int):
    """From 2^24 weights on a product of the kernels computes decode steps, of any rows, and torch's still prefills."""
    if kernels() is None:
        pytest.skip("no C compiler")
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    sizes = {"vocab_size": vocabulary, "hidden_size": 128, "intermediate_size": 256, "tie_word_embeddings": True}
    model = LlamaForCausalLM(LlamaConfig(**heads, **sizes)).eval()
    model.set_attn_implementation(NAME)
    weights = CompiledWeights(model, torch.float32)
    assert weights.direct == (model.num_parameters() > 1 << 24) == (vocabulary == 140_000)
    prompts = [tuple(torch.randint(0, vocabulary, (3 + length % 20,)).tolist()) for length in range(MANY_ROWS)]
    among = decoded(weights, prompts)
    for count in (1, 2, 3, 5, 8, 17):
        for first in range(0, MANY_ROWS - count, 7):
            assert torch.equal(decoded(weights, prompts[first : first + count]), among[first : first + count])
    # A pass over all tokens adds them up in another order: equal to rounding alone, on both sides.
    shape = CacheShape(2, 1, 64, groups=MANY_ROWS, rows=1, prompt_tokens=30, own_tokens=4)
    torch.testing.assert_close(among, CompiledForward(weights, shape).prefill(prompts, 0), rtol=0, atol=1e-5)


MANY_ROWS = 24


def decoded(weights: CompiledWeights, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Logits after the last token of each prompt, which a decode step reads."""
    size = len(prompts)
    forward = CompiledForward(weights, CacheShape(2, 1, 64, groups=size, rows=size, prompt_tokens=30, own_tokens=4))
    forward.prefill([ids[:-1] for ids in prompts], 0)
    rows = Rows(size, Sampling(max_tokens=4), (0,), CPU)
    rows.add([(0, slot, len(ids) - 1, 0) for slot, ids in enumerate(prompts)])
    rows.newest[:], rows.length[:] = torch.tensor([ids[-1] for ids in prompts]), 1
    rows.written[:] = [1] * size
    return forward.decode_step(rows, 1, [len(ids) - 1 for ids in prompts])


@pytest.mark.parametrize(
    "rule",
    [Rule(0.2), Rule(0.2, window=20), Rule(0.2, softcap=5.0, sinks=torch.tensor([0.3, -1.0, 0.0, 2.0]))],
    ids=["plain", "window", "softcap and sinks"],
)
@torch.no_grad()
def test_exact_attention_has_the_same_bits_for_a_sequence_read_at_once_and_token_by_token(rule: Rule):
    """In float64 against softmax over all keys; a long neighbor pads the blocks."""
    torch.manual_seed(0)
    query, (key, value) = torch.randn(2, 150, 4, 16), torch.randn(2, 2, 150, 2, 16)
    at_once = exact_attention(query, key, value, torch.arange(150).expand(2, -1), rule)
    for end in (1, 2, 3, 64, 65, 149, 150):
        short = exact_attention(
            query[:1, end - 1 : end], key[:1, :end], value[:1, :end], torch.tensor([[end - 1]]), rule
        )
        assert torch.equal(short[0, 0], at_once[0, end - 1])
        exact = reference(query[0, end - 1].double(), key[0, :end].double(), value[0, :end].double(), rule)
        assert (short[0, 0].double() - exact).abs().max() < 1e-6


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule) -> torch.Tensor:
    """[heads, d] of one query."""
    made = []
    for head, q in enumerate(query):
        scores = rule.scaling * key[:, head // 2] @ q
        scores = scores if rule.softcap is None else rule.softcap * (scores / rule.softcap).tanh()
        first = 0 if rule.window is None else max(0, len(scores) - rule.window)
        chances = scores[first:].exp()
        total = chances.sum() + (0 if rule.sinks is None else rule.sinks[head].double().exp())
        made.append(chances / total @ value[first:, head // 2])
    return torch.stack(made)


CHECK = """
from itertools import product
import torch
from grouprl.forward import products
from grouprl.forward.products import equal_rows, padded_call
for threads, dtype in product((1, 2), (torch.float32, torch.bfloat16)):
    torch.set_num_threads(threads)
    layer = torch.nn.Linear(96, 160).to(dtype).requires_grad_(False)
    x = torch.randn(200, 96).to(dtype)
    rule, among = equal_rows(frozenset({(96, 160)}), dtype), padded_call(layer, x)
    equal = all(torch.equal(padded_call(layer, x[n : 2 * n]), among[n : 2 * n]) for n in range(1, 65))
    print(rule.holds, equal, products._file().name)
"""
SETTINGS = (
    "",
    "MKL_CBWR=COMPATIBLE",
    "MKL_CBWR=AVX2,STRICT",
    "MKL_CBWR=SSE4_2",
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2",
    "MKL_ENABLE_INSTRUCTIONS=AVX",
    "ONEDNN_MAX_CPU_ISA=SSE41",
    "ONEDNN_MAX_CPU_ISA=AVX",
    "ONEDNN_MAX_CPU_ISA=AVX2",
    "ATEN_CPU_CAPABILITY=default",
    "ATEN_CPU_CAPABILITY=avx2",
)


@pytest.mark.slow
def test_other_instructions_of_this_machine_are_measured_anew(tmp_path: Path):
    files = set()
    for setting in SETTINGS:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **(dict([setting.split("=")]) if setting else {})}
        ended = subprocess.run(
            [sys.executable, "-c", CHECK], capture_output=True, text=True, env=environment, check=True
        )
        for line in ended.stdout.splitlines():
            holds, equal, file = line.split()
            assert (holds, equal) == ("True", "True"), (setting, line)
            files.add(file)
    assert len(files) == len(SETTINGS)
