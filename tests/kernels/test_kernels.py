"""The compiled kernels, and torch in their place, against torch in float64; the tests need a C compiler."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.forward.layouts import Prefix, TreeLayout
from grouprl.kernels import calibration
from grouprl.kernels.build import library
from grouprl.kernels.functions import add_norm, fits, kernels, linear_logprobs, pointers, swiglu
from grouprl.kernels.llama_form import AttentionInput, attend_rotated
from grouprl.kernels.tokens import draw as draw_compiled
from grouprl.rollout.sampler import draw, row_key, uniforms
from grouprl.types import Sampling

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler")
CPU = torch.device("cpu")
both_forms = pytest.mark.usefixtures("form")


@pytest.fixture(params=["kernel", "torch"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is faster."""
    monkeypatch.setattr(calibration, "_kernel_wins", lambda *_: request.param == "kernel")


def leaves(*tensors: Tensor) -> list[Tensor]:
    """Copies in float64 that take a gradient."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def assert_same_with_gradients(got: Tensor, expected: Tensor, ours: list[Tensor], theirs: list[Tensor], within: float):
    direction = torch.randn(got.shape, generator=torch.Generator().manual_seed(5))
    got.backward(direction.to(got.dtype))
    expected.backward(direction.to(got.dtype).double())
    pairs = [(got, expected), *((one.grad, other.grad) for one, other in zip(ours, theirs, strict=True))]
    for one, other in pairs:
        assert one is not None
        assert other is not None
        limit = within * (
            1 + float(other.detach().abs().max())
        )  # of the largest: small ones are differences of large ones
        torch.testing.assert_close(one.double(), other, rtol=within, atol=limit)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


DTYPES = [(torch.float32, 5e-6), (torch.bfloat16, 2e-2)]


def test_sizes_that_are_no_whole_vectors_do_not_fit():
    assert fits(16, 48)
    assert not fits(16, 40)


@both_forms
@pytest.mark.parametrize(("dtype", "within"), DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (7, 48), (300, 256)])
@pytest.mark.parametrize("with_delta", [False, True])
def test_add_norm(rows: int, size: int, dtype: torch.dtype, within: float, with_delta: bool):
    x, weight, delta = random(rows, size), random(size, seed=1), random(rows, size, dtype=dtype, seed=2)
    ours = [x, weight, delta] if with_delta else [x, weight]
    theirs = leaves(*ours)
    total, normed = add_norm(x, delta if with_delta else None, weight, 1e-3, dtype)
    expected_total = theirs[0] + theirs[2] if with_delta else theirs[0]
    expected = F.rms_norm(expected_total, (size,), theirs[1], eps=1e-3)
    assert normed.dtype == dtype
    # Both results flow on: the sum to the next block, the norm to this one.
    assert_same_with_gradients(normed.float() + 0.5 * total, expected + 0.5 * expected_total, ours, theirs, within)


@both_forms
@pytest.mark.parametrize(("dtype", "within"), DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (5, 33 * 16), (700, 112)])
def test_swiglu(shape: tuple[int, int], dtype: torch.dtype, within: float):
    ours = [random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)]
    theirs = leaves(*ours)
    assert_same_with_gradients(swiglu(*ours), F.silu(theirs[0]) * theirs[1], ours, theirs, within)


@both_forms
def test_swiglu_far_out():
    gate = torch.tensor([-1e4, -200.0, -88.0, -1e-8, 0.0, 1e-8, 88.0, 1e4] * 2)
    expected = F.silu(gate.double())
    torch.testing.assert_close(swiglu(gate, torch.ones(16)).double(), expected, rtol=1e-6, atol=1e-30)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine[:, None] + torch.cat([-second, first], -1) * sine[:, None]


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, cosine: Tensor, sine: Tensor, layout: TreeLayout, window: int | None
) -> Tensor:
    """Softmax over all packed tokens at once, with a mask for each token."""
    repeat = q.shape[1] // k.shape[1]
    owner = [
        (group, branch)
        for group, lengths in enumerate(zip(layout.prompt_lengths, layout.completion_lengths, strict=True))
        for branch, length in enumerate((lengths[0], *lengths[1]))
        for _ in range(length)
    ]
    group_S, branch_S = torch.tensor(owner).T
    seen = (group_S[:, None] == group_S) & ((branch_S == 0) | (branch_S[:, None] == branch_S))
    seen &= torch.ones_like(seen).tril()
    if window is not None:
        seen &= layout.position_ids_S[:, None] - layout.position_ids_S < window
    turned, keys = rotated(q, cosine, sine), rotated(k, cosine, sine).repeat_interleave(repeat, 1)
    scores = torch.einsum("shd,thd->hst", turned, keys) * 0.3
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hst,thd->shd", weights, v.repeat_interleave(repeat, 1))


TREES = [((1,), ((1,),)), ((5,), ((),)), ((17, 3), ((4, 0, 33), (16,))), ((2, 40), ((7, 7, 7), (1, 50, 2)))]


@both_forms
@pytest.mark.parametrize(("dtype", "within"), DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(1, 1, 16), (6, 2, 64), (3, 1, 80)])
@pytest.mark.parametrize(("prompts", "completions"), TREES)
@pytest.mark.parametrize("window", [None, 1, 20])
def test_tree_attention(
    prompts: tuple[int, ...],
    completions: tuple[tuple[int, ...], ...],
    heads: int,
    kv_heads: int,
    size: int,
    dtype: torch.dtype,
    within: float,
    window: int | None,
):
    layout = TreeLayout(prompts, completions, CPU)
    ours = [random(layout.size, count, size, dtype=dtype, seed=count) for count in (heads, kv_heads, kv_heads)]
    theirs = leaves(*ours)
    angles = layout.position_ids_S[:, None] / 100.0 ** (torch.arange(size // 2) / size)
    cosine, sine = (table.repeat(1, 2) for table in (angles.cos(), angles.sin()))
    got = attend_rotated(layout, 0, AttentionInput(*ours, cosine, sine, 0.3, window))
    expected = masked_attention(*theirs, cosine.double(), sine.double(), layout, window)
    assert_same_with_gradients(got, expected, ours, theirs, within)


@both_forms
@pytest.mark.parametrize(("dtype", "within"), DTYPES)
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("prompts", "completions"), TREES[1:])
def test_tree_attention_after_a_prefix(
    prompts: tuple[int, ...],
    completions: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    within: float,
    window: int | None,
):
    """Every group with a copy of the prefix in its prompt, in one softmax, is what groups share when it is apart."""
    before, (heads, kv_heads, size) = 16, (6, 2, 32)
    whole = TreeLayout(tuple(before + length for length in prompts), completions, CPU)
    begins = whole.tree[0][:, 0].tolist()
    prefixes = torch.cat([torch.arange(begin, begin + before) for begin in begins])
    own = torch.tensor([place for place in range(whole.size) if place not in set(prefixes.tolist())])
    given = [random(whole.size, count, size, dtype=dtype, seed=count).detach() for count in (heads, kv_heads, kv_heads)]
    for tensor in given:
        tensor[prefixes] = tensor[:before].repeat(len(prompts), 1, 1)
    angles = whole.position_ids_S[:, None] / 100.0 ** (torch.arange(size // 2) / size)
    cosine, sine = (table.repeat(1, 2) for table in (angles.cos(), angles.sin()))
    theirs = leaves(*given)
    expected = masked_attention(*theirs, cosine.double(), sine.double(), whole, window)[own]
    ours = [tensor[own].requires_grad_() for tensor in given]
    shared = [tensor[:before].float().requires_grad_() for tensor in given[1:]]
    keys = rotated(shared[0], cosine[:before], sine[:before])
    layout = TreeLayout(prompts, completions, CPU, before, Prefix([keys], [shared[1]]))
    assert layout.longest == whole.longest
    got = attend_rotated(layout, 0, AttentionInput(*ours, cosine[own], sine[own], 0.3, window))
    direction = random(*got.shape, dtype=dtype, seed=5).detach()
    got.backward(direction)
    expected.backward(direction.double())
    pairs = [(got, expected), *((one.grad, other.grad[own]) for one, other in zip(ours, theirs, strict=True))]
    # What all copies get together.
    summed = [other.grad[prefixes].view(len(prompts), before, kv_heads, size).sum(0) for other in theirs[1:]]
    pairs += [(one.grad, other) for one, other in zip(shared, summed, strict=True)]
    for one, other in pairs:
        limit = within * (1 + float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, rtol=within, atol=limit)


@both_forms
def test_tokens_after_the_tree_see_nothing():
    layout = TreeLayout((3,), ((2, 1),), CPU)
    ours = [random(layout.size + 5, 2, 16, dtype=torch.float32, seed=seed) for seed in range(3)]
    short = [tensor[: layout.size].detach().clone().requires_grad_() for tensor in ours]
    tables = torch.ones(layout.size + 5, 16), torch.zeros(layout.size + 5, 16)
    for rows, tensors in ((layout.size + 5, ours), (layout.size, short)):
        given = torch.full((rows, 2, 16), 0.5)
        attend_rotated(layout, 0, AttentionInput(*tensors, *(table[:rows] for table in tables), 0.3)).backward(given)
    for long, alone in zip(ours, short, strict=True):
        assert long.grad is not None
        torch.testing.assert_close(long.grad[: layout.size], alone.grad)
        assert not long.grad[layout.size :].any()


@pytest.mark.parametrize(("dtype", "within"), DTYPES)
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 5), (9, 16), (50, 1003), (3, 40_000)])
@pytest.mark.parametrize("chunk", [4, 10_000])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_logprobs(rows: int, vocabulary: int, chunk: int, with_bias: bool, dtype: torch.dtype, within: float):
    hidden, weight = random(rows, 32, dtype=dtype), random(vocabulary, 32, dtype=dtype, seed=1)
    ours = [hidden, weight, *([random(vocabulary, dtype=dtype, seed=2)] if with_bias else [])]
    theirs = leaves(*ours)
    targets = torch.randint(vocabulary, (rows,), generator=torch.Generator().manual_seed(3))
    got, entropies = linear_logprobs(hidden, weight, ours[2] if with_bias else None, targets, 0.7, chunk)
    logits = F.linear(theirs[0], theirs[1], theirs[2] if with_bias else None) / 0.7
    expected = logits.log_softmax(-1)
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(entropies.double(), entropy, rtol=within, atol=5 * within)
    assert not entropies.requires_grad
    assert_same_with_gradients(got, expected.gather(1, targets[:, None])[:, 0], ours, theirs, 3 * within)


@pytest.mark.parametrize("vocabulary", [3, 16, 937])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_the_compiled_draw_is_the_plain_one(vocabulary: int, temperature: float):
    logits = 3 * random(500, vocabulary).detach()
    logits[::3, 1] = -torch.inf
    keys = torch.tensor([row_key(1, "", "problem", index) for index in range(500)])
    positions = torch.arange(500) % 7
    got = draw_compiled(logits, keys, positions, temperature)
    expected = draw(logits, uniforms(keys, positions), Sampling(temperature=temperature))
    assert got[0].tolist() == expected[0].tolist()
    for one, other in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 33, 70])
@pytest.mark.parametrize(("inner", "outer"), [(16, 1), (48, 5), (576, 6), (112, 101), (1536, 64)])
@pytest.mark.parametrize("with_bias", [False, True])
@torch.no_grad()
def test_product(rows: int, inner: int, outer: int, with_bias: bool):
    x, weight = random(rows, inner), random(outer, inner, seed=1)
    bias = random(outer, seed=2) if with_bias else None
    got = torch.full((rows + 1, outer), 7.0)
    kernels().product(*pointers(x, weight, bias, got), rows, inner, outer)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(got[:rows].double(), expected, rtol=0, atol=2e-7 * inner)
    assert (got[rows] == 7).all()
    last, alone = x[rows - 1 :].clone(), torch.empty(1, outer)
    kernels().product(*pointers(last, weight, bias, alone), 1, inner, outer)
    assert torch.equal(alone[0], got[rows - 1])
