"""Packed groups give the hidden states of each architecture's own forward pass; how they are packed and recomputed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from grouprl.forward.attention import NAME, Rule, hidden_states
from grouprl.forward.layouts import Prefix, TreeLayout
from grouprl.forward.packing import GroupSize, PackedUnit, pack_groups
from grouprl.forward.recompute import recompute_activations, recomputes
from grouprl.models.load import load_model
from grouprl.types import UserError
from tiny import Kind, tiny_model_folder

CPU = torch.device("cpu")
UNEVEN = ((5, 2, 7), ((3, 1, 4), (6,), (2, 2)))
SHAPES = {
    "uneven groups": UNEVEN,
    "one completion": ((3,), ((4,),)),
    "single tokens": ((1, 1), ((1, 1, 1), (1,))),
    "a prompt alone among groups": ((4, 6, 2), ((2, 3), (), (5,))),
    "prompts alone": ((4, 1, 6), ((), (), ())),
}
Shape = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Pair:
    """The same weights twice: with packed attention, and with the library's own attention."""

    packed: PreTrainedModel
    own: PreTrainedModel


@pytest.fixture(
    scope="module",
    params=[("qwen2", 2), ("llama", 4), ("llama", 1), ("qwen3", 2)],
    ids=lambda param: f"{param[0]}-{param[1]}kv",
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    kind, kv_heads = request.param
    folder = tiny_model_folder(tmp_path_factory.mktemp("model"), kind=kind, kv_heads=kv_heads)
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return Pair(load_model(str(folder), device=CPU), own)


def random_ids(layout: TreeLayout, seed: int = 0) -> Tensor:
    return torch.randint(5, 320, (layout.size,), generator=torch.Generator().manual_seed(seed))


def spans(layout: TreeLayout) -> list[tuple[int, int, range]]:
    """(group, branch, places in S) in packed order; branch 0 is the prompt."""
    found, at = [], 0
    for group, (prompt, own) in enumerate(zip(layout.prompt_lengths, layout.completion_lengths, strict=True)):
        for branch, length in enumerate((prompt, *own)):
            found.append((group, branch, range(at, at + length)))
            at += length
    return found


def sequences(layout: TreeLayout) -> list[tuple[list[int], list[int]]]:
    """The indices in S that each branch attends to (its prompt and itself), and the indices of the branch itself."""
    prompts = {group: list(places) for group, branch, places in spans(layout) if branch == 0}
    return [
        (list(places), list(places)) if branch == 0 else (prompts[group] + list(places), list(places))
        for group, branch, places in spans(layout)
    ]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@torch.no_grad()
def test_packed_hidden_states_are_the_models_own(pair: Pair, shape: Shape):
    layout = TreeLayout(*shape, CPU)
    ids = random_ids(layout)
    packed = hidden_states(pair.packed, ids, layout.position_ids_S, layout)
    compared = 0
    for read, own in sequences(layout):
        expected = pair.own.model(ids[read][None], use_cache=False).last_hidden_state[0, -len(own) :]
        torch.testing.assert_close(packed[own], expected, atol=1e-5, rtol=0)
        compared += len(own)
    assert compared == layout.size == len(packed)


def test_the_worked_example_of_the_docstring():
    layout = TreeLayout((2,), ((2, 1),), CPU)
    assert layout.position_ids_S.tolist() == [0, 1, 2, 3, 2]
    assert (layout.size, layout.longest) == (5, 4)
    seen = [[bool(layout.sees(None)(None, None, torch.tensor(q), torch.tensor(k))) for k in range(5)] for q in range(5)]
    assert [[k for k in range(5) if row[k]] for row in seen] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4]]


def visible(layout: TreeLayout, window: int | None = None) -> Tensor:
    """[S, S] by walking over every pair that a branch reads."""
    mask = torch.zeros(layout.size, layout.size, dtype=torch.bool)
    for read, own in sequences(layout):
        for query in own:
            before = [key for key in read if key <= query]
            mask[query, before if window is None else before[-window:]] = True
    return mask


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_mask_function_agrees_with_every_pair(shape: Shape, window: int | None):
    layout = TreeLayout(*shape, CPU)
    sees, pairs = layout.sees(window), itertools.product(range(layout.size), repeat=2)
    seen = [sees(None, None, torch.tensor(query), torch.tensor(key)) for query, key in pairs]
    assert torch.equal(torch.stack(seen).view(layout.size, layout.size), visible(layout, window))


@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_the_mask_function_of_a_prefix_is_that_of_whole_prompts(window: int | None):
    (prompts, completions), before = UNEVEN, 16
    whole = visible(TreeLayout(tuple(before + length for length in prompts), completions, CPU), window)
    layout = TreeLayout(prompts, completions, CPU, before)
    sees, at = layout.sees(window), 0
    for group, (prompt, own) in enumerate(zip(prompts, completions, strict=True)):
        first, tokens = (group + 1) * before, prompt + sum(own)
        for query in range(at, at + tokens):
            keys = range(before + layout.size)
            seen = [bool(sees(None, None, torch.tensor(query), torch.tensor(key))) for key in keys]
            row = whole[first + query].tolist()
            begin = at + first - before  # of the group among whole prompts
            expected = [*row[begin : begin + before], *[False] * layout.size]
            expected[before + at : before + at + tokens] = row[begin + before : begin + before + tokens]
            assert seen == expected
        at += tokens


def random_qkv(layout: TreeLayout, heads: int, kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(layout.size, count, 8, generator=generator).to(dtype).requires_grad_()
        for count in (heads, kv_heads, kv_heads)
    ]


def dense_attention(layout: TreeLayout, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
    """One query head at a time over all S keys, with the brute-force mask; a sink is a key whose value is 0."""
    heads_per_key = query.shape[1] // key.shape[1]
    results = []
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // heads_per_key].T * rule.scaling
        if rule.softcap is not None:
            scores = (scores / rule.softcap).tanh() * rule.softcap
        scores = scores.masked_fill(~visible(layout, rule.window), -torch.inf)
        values = value[:, head // heads_per_key]
        if rule.sinks is not None:
            scores = torch.cat([scores, rule.sinks[head].to(scores.dtype).expand(len(scores), 1)], dim=1)
            values = torch.cat([values, torch.zeros_like(values[:1])])
        results.append(scores.softmax(-1) @ values)
    return torch.stack(results, dim=1)


RULES = {
    "plain": Rule(0.4),
    "window": Rule(0.4, window=3),
    "soft-cap": Rule(0.4, softcap=0.7),
    "sinks": Rule(0.4, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "all": Rule(0.4, window=2, softcap=0.7, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_attention_and_its_gradient_equal_dense_attention(shape: Shape, kv_heads: int, rule: Rule):
    layout = TreeLayout(*shape, CPU)
    results = []
    for function in (layout.attend, None):
        qkv = random_qkv(layout, 4, kv_heads, torch.float64)
        attended = dense_attention(layout, *qkv, rule) if function is None else function(0, *qkv, rule)
        (attended * torch.linspace(-1, 1, attended.numel()).view(attended.shape)).sum().backward()
        results.append([attended.detach(), *(tensor.grad for tensor in qkv)])
    torch.testing.assert_close(results[0], results[1], atol=1e-10, rtol=1e-8)


@pytest.fixture
def eager_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """flex_attention without torch.compile, which needs a GPU; on a CPU torch refuses its gradient, which it has."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr("grouprl.forward.layouts._compiled_flex", lambda: flex_attention)


@pytest.mark.usefixtures("eager_flex")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_path_of_a_gpu_and_its_gradient_equal_dense_attention(kv_heads: int, rule: Rule):
    layout = TreeLayout(*SHAPES["a prompt alone among groups"], CPU)
    results = []
    for function in (layout._flex, partial(dense_attention, layout)):
        qkv = random_qkv(layout, 4, kv_heads, torch.float32)
        attended = function(*qkv, rule)
        (attended * torch.linspace(-1, 1, attended.numel()).view(attended.shape)).sum().backward()
        results.append([attended.detach(), *(tensor.grad for tensor in qkv)])
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=0)


@pytest.mark.usefixtures("eager_flex")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("rule", [RULES["plain"], RULES["all"]], ids=["plain", "all"])
def test_the_path_of_a_gpu_after_a_prefix_equals_that_of_a_cpu(rule: Rule):
    prompts, completions = UNEVEN
    layout = TreeLayout(prompts, completions, CPU, 16)
    results = []
    for on_gpu in (True, False):
        shared = [random(16, 2, 8, seed=seed) for seed in (7, 8)]
        after, qkv = replace(layout, prefix=Prefix(*([one] for one in shared))), random_qkv(layout, 4, 2, torch.float32)
        attended = after._flex(*qkv, rule, tuple(shared)) if on_gpu else after.attend(0, *qkv, rule)
        (attended * torch.linspace(-1, 1, attended.numel()).view(attended.shape)).sum().backward()
        results.append([attended.detach(), *(tensor.grad for tensor in (*qkv, *shared))])
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=0)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.slow
@pytest.mark.parametrize("rule", [RULES["plain"], RULES["all"]], ids=["plain", "all"])
def test_layouts_of_other_sizes_are_not_compiled_again(rule: Rule, monkeypatch: pytest.MonkeyPatch):
    """Torch compiles a function 8 times; afterwards it would run without, and hold the scores of all pairs of tokens.

    Traced as for a GPU, but run by torch without a kernel.
    """
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    traced = torch.compile(flex_attention, dynamic=True, backend="aot_eager")
    monkeypatch.setattr("grouprl.forward.layouts._compiled_flex", lambda: traced)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for shape in (
        UNEVEN,
        ((50,), ((60, 61, 70),)),
        ((9, 8), ((3, 4), (5, 6))),
        ((128,), ((128,) * 3,)),
        ((7,), ((9,),)),
    ):
        layout = TreeLayout(*shape, CPU)
        qkv = random_qkv(layout, 4, 2, torch.float32)
        attended = layout._flex(*qkv, rule)
        attended.sum().backward()
        torch.testing.assert_close(attended, dense_attention(layout, *qkv, rule), atol=1e-5, rtol=0)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


# What packed attention cannot do is refused


def test_a_forward_without_a_layout_is_refused(tiny: Path):
    with pytest.raises(UserError, match="token layout"):
        load_model(str(tiny), device=CPU)(torch.tensor([[5, 6]]), use_cache=False)


def test_dropout_is_refused():
    layout = TreeLayout(*UNEVEN, CPU)
    qkv = (tensor.transpose(0, 1)[None] for tensor in random_qkv(layout, 4, 2, torch.float32))
    with pytest.raises(UserError, match=r"dropout=0\.1"):
        AttentionInterface()[NAME](torch.nn.Module(), *qkv, None, scaling=0.4, layout=layout, dropout=0.1)


GROUPS = st.lists(
    st.builds(GroupSize, st.integers(1, 40), st.lists(st.integers(0, 30), min_size=1, max_size=9).map(tuple)),
    max_size=9,
)


def test_packs_by_hand() -> None:
    groups = [GroupSize(4, (3, 3, 3)), GroupSize(2, (8,)), GroupSize(1, (1, 1))]
    # Budget 10: the first group is divided, its prompt read again; the longest completion comes first.
    assert pack_groups(groups, 10, "cpu") == [
        [PackedUnit(1, (0,), 10, 8)],
        [PackedUnit(0, (0, 1), 10, 3)],
        [PackedUnit(0, (2,), 7, 3), PackedUnit(2, (0, 1), 3, 1)],
    ]
    assert [len(pack) for pack in pack_groups(groups, 0, "cpu")] == [3]
    assert pack_groups([], 10, "cpu") == []
    # A single completion may exceed the budget with its prompt.
    assert pack_groups([GroupSize(9, (9, 9))], 10, "cuda") == [
        [PackedUnit(0, (0,), 18, 9)],
        [PackedUnit(0, (1,), 18, 9)],
    ]


@given(GROUPS, st.integers(1, 200))
def test_every_completion_is_packed_once_and_packs_keep_to_the_budget(groups: list[GroupSize], budget: int) -> None:
    packs = pack_groups(groups, budget, "cpu")
    found = [(unit.group, place) for pack in packs for unit in pack for place in unit.completions]
    assert sorted(found) == [
        (index, place) for index, group in enumerate(groups) for place in range(len(group.completions))
    ]
    for pack in packs:
        for unit in pack:
            lengths = [groups[unit.group].completions[place] for place in unit.completions]
            assert (unit.tokens, unit.longest) == (groups[unit.group].prompt + sum(lengths), max(lengths))
        assert sum(unit.tokens for unit in pack) <= budget or len(pack) == len(pack[0].completions) == 1
    longest = [unit.longest for pack in packs for unit in pack]
    assert longest == sorted(longest, reverse=True)
    for group in range(len(groups)):  # whole where it fits
        units = [unit for pack in packs for unit in pack if unit.group == group]
        assert len(units) == 1 or groups[group].tokens > budget


@given(st.lists(st.integers(20, 900), min_size=2, max_size=60))
def test_packs_on_a_cpu_are_even(completions: list[int]) -> None:
    groups = [GroupSize(10, (length,)) for length in completions]
    sizes = [sum(unit.tokens for unit in pack) for pack in pack_groups(groups, 0, "cpu")]
    total = sum(group.tokens for group in groups)
    assert sum(sizes) == total
    assert max(sizes) <= 1024
    if total > 1024:
        # No packs in the same order could be as many and smaller: one of them would exceed every smaller budget.
        smaller = pack_groups(groups, max(sizes) - 1, "cpu")
        assert len(smaller) > -(-len(pack_groups(groups, 1024, "cpu")) // 4) * 4 or max(sizes) == 10 + max(completions)


def test_even_packs_by_hand() -> None:
    groups = [GroupSize(100, (200,))] * 9  # 2,700 tokens: three packs of 900 tokens would do
    assert [len(pack) for pack in pack_groups(groups, 0, "cpu")] == [3, 3, 3]
    assert [len(pack) for pack in pack_groups(groups[:8], 0, "cpu")] == [2, 2, 2, 2]
    assert [len(pack) for pack in pack_groups(groups, 0, "cuda")] == [9]


LAYOUT = TreeLayout((5, 9), ((3, 7), (1, 0)), CPU)


def gradients(model: PreTrainedModel) -> tuple[Tensor, dict[str, Tensor], int]:
    """Hidden states, the gradient of their weighted sum, and the bytes kept for it."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.arange(5, 5 + LAYOUT.size)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = hidden_states(model, ids, LAYOUT.position_ids_S, LAYOUT)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * weights).sum().backward()
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    return (
        found.detach(),
        {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None},
        sum(size for place, size in kept.items() if place not in own),
    )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_gradient_is_equal_and_less_kept(
    tmp_path: Path, kind: Kind, compiled: bool, monkeypatch: pytest.MonkeyPatch
):
    if not compiled:
        monkeypatch.setattr("grouprl.kernels.offers.reads", lambda decoder: False)
    folder = str(tiny_model_folder(tmp_path, kind=kind))
    expected, expected_gradient, all_bytes = gradients(load_model(folder, device=CPU))
    model = load_model(folder, device=CPU)
    recompute_activations(model)
    found, gradient, few_bytes = gradients(model)
    assert torch.equal(found, expected)
    assert gradient.keys() == expected_gradient.keys()
    for name, value in gradient.items():
        assert torch.equal(value, expected_gradient[name]), name
    assert few_bytes < 0.6 * all_bytes
    assert not any(module.training for layer in model.get_decoder().layers for module in layer.children())


def test_layers_run_again_on_a_gpu_unless_it_is_set() -> None:
    assert [recomputes(None, device) for device in ("cpu", "cuda")] == [False, True]
    assert recomputes(True, "cpu")
    assert not recomputes(False, "cuda")
