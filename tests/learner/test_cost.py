"""What a step costs, in operations instead of seconds: every expectation is worked out by hand from the shapes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from counting import Costs, Product, count_kernels, count_products_of_decode_steps
from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.spec import Algorithm
from grouprl.config.learner import UpdateConfig
from grouprl.forward.attention import NAME
from grouprl.forward.logprobs import token_logprobs
from grouprl.forward.precision import autocast
from grouprl.forward.products import equal_rows, product_sizes
from grouprl.forward.workers import one_thread
from grouprl.kernels.build import library
from grouprl.kernels.compiled_forward import CompiledForward
from grouprl.kernels.compiled_weights import CompiledWeights
from grouprl.learner import Optimizer, make_batch
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request
from grouprl.rollout.cache import CacheShape
from grouprl.rollout.decoding import Decoding, Unit, UnitQueue
from grouprl.rollout.forward import ModuleForward
from grouprl.types import Completion, Group, Problem, Sampling, StopReason
from learner_setting import learner_of
from variants import variant

CPU = torch.device("cpu")
MIB = 1 << 20

# The tiny checkpoint: 2 layers, hidden size 64, 4 query heads and 2 key/value heads of 16, MLP 128, vocabulary 320.
LAYERS, HIDDEN, KV, MLP, VOCABULARY = 2, 64, 32, 128, 320
LAYER = 36_864  # weights: queries and output 2 * 64 * 64, keys and values 2 * 64 * 32, MLP 3 * 64 * 128
HEAD = 20_480  # 320 * 64
READ = 2 * LAYERS * LAYER  # FLOPs of a token that is read: a multiplication and an addition per weight
PREDICTED = 2 * HEAD  # and of one that is predicted

needs_kernels = pytest.mark.skipif(library() is None, reason="no C compiler")


@pytest.fixture(params=[pytest.param("compiled", marks=needs_kernels), "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the compiled kernels, and as on a machine without a compiler."""
    if request.param == "torch":
        monkeypatch.setenv("GROUPRL_KERNELS", "off")
        library.cache_clear()
    yield str(request.param)
    monkeypatch.undo()
    if request.param == "torch":
        library.cache_clear()


@pytest.fixture(autouse=True)
def products_of_decode_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    count_products_of_decode_steps(monkeypatch)


@pytest.fixture
def model(tiny: Path) -> PreTrainedModel:
    return load_model(str(tiny), device=CPU)


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(tiny))


# Learning


def group(name: str, prompt: int, *lengths: int) -> Group:
    """A prompt and completions of these many tokens."""
    completions = (
        Completion(index, tuple(range(9, 9 + length)), (-5.0,) * length, (-5.0,) * length, "", StopReason.LENGTH, 0)
        for index, length in enumerate(lengths)
    )
    return Group(Problem(name, ""), tuple(range(40, 40 + prompt)), tuple(completions))


# 22 prompt tokens; completions of 15 + 8 + 12 = 35 tokens, of which the last of each of the 9 is not read.
GROUPS = (group("a", 7, 5, 1, 9), group("b", 3, 4, 4), group("c", 12, 2, 6, 1, 3))
FORWARD = 48 * READ + 35 * PREDICTED
WITHOUT_ANCHOR, WITH_ANCHOR = variant(kl_coef=0.0), variant(kl_coef=0.04)


class Learned(NamedTuple):
    look: int  # FLOPs
    learn: int
    products: frozenset[Product]  # of learning


def learned(
    model: PreTrainedModel,
    groups: Sequence[Group],
    advantages: Sequence[float],
    algorithm: Algorithm,
    micro_batch_tokens: int = 10**6,
    dtype: str = "float32",
) -> Learned:
    batch = make_batch(groups, Sampling(max_tokens=16))
    learner = learner_of(
        model, algorithm, optimizer=Optimizer(model, UpdateConfig()), dtype=dtype, micro_batch_tokens=micro_batch_tokens
    )
    credit = Credit(batch.mask_NT * torch.tensor(advantages)[:, None])
    with Costs() as looking:
        seen = learner.evaluate(batch)
    with Costs() as learning:
        learner.learn(batch, credit, seen, step=2)
    return Learned(looking.flops, learning.flops, frozenset(learning.products))


# The second group has no signal, in the third only the completions of 6 and 3 tokens have.
SOME = [1.0, -1.0, 0.5, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("algorithm", "advantages", "micro_batch_tokens", "look", "learn"),
    [
        (WITH_ANCHOR, [1.0] * 9, 10**6, FORWARD, FORWARD),
        (WITH_ANCHOR, [1.0] * 9, 20, FORWARD, FORWARD),  # a pack for each group, of 20, 19 and 9 tokens
        (WITHOUT_ANCHOR, [1.0] * 9, 10**6, 0, FORWARD),
        # Read: 7 + (4 + 0 + 8) and 12 + (5 + 2); predicted: 5 + 1 + 9 and 6 + 3.
        (WITHOUT_ANCHOR, SOME, 10**6, 0, 38 * READ + 24 * PREDICTED),
        (WITHOUT_ANCHOR, [0.0] * 9, 10**6, 0, 0),
    ],
    ids=["anchor", "three packs", "no anchor", "some signal", "no signal"],
)
def test_a_step_costs_three_forward_passes_of_what_has_signal_and_the_reference_one(
    model: PreTrainedModel,
    way: str,
    algorithm: Algorithm,
    advantages: list[float],
    micro_batch_tokens: int,
    look: int,
    learn: int,
):
    """Backward, each product is done twice: for the gradient of its input, and for that of its weights."""
    assert learned(model, GROUPS, advantages, algorithm, micro_batch_tokens)[:2] == (look, 3 * learn)


@needs_kernels
def test_learning_uses_the_kernels(monkeypatch: pytest.MonkeyPatch, model: PreTrainedModel):
    called = count_kernels(monkeypatch)
    learned(model, GROUPS, [1.0] * 9, WITHOUT_ANCHOR)
    # In each of 2 layers 2 norms, attention and SwiGLU; then the last norm and the log-probs; all of it backward too.
    forward = {"add_norm": 5, "tree_attention": 2, "swiglu": 2, "logprobs": 1}
    backward = {"norm_backward": 5, "tree_attention_backward": 2, "swiglu_backward": 2, "logprobs_backward": 1}
    assert called == forward | backward


@needs_kernels
def test_batches_of_other_sizes_make_the_same_products_in_bfloat16(model: PreTrainedModel):
    """Or each would be compiled anew. 48 tokens are read and 35 predicted, then 56 and 43: all fit into 64."""
    other = (group("a", 7, 5, 2, 16), *GROUPS[1:])
    few, more = (learned(model, groups, [1.0] * 9, WITHOUT_ANCHOR, dtype="bfloat16") for groups in (GROUPS, other))
    assert len(few.products) >= 9
    assert few.products == more.products


# Sampling


class Sampled(NamedTuple):
    lengths: list[int]  # of the completions
    prefills: list[tuple[int, int]]  # tokens read, and predicted, which are fewer here
    steps: list[int]  # rows of each step of decoding, which reads and predicts one token for every one
    flops: int
    fewest: int  # rows of a product, see `grouprl.forward.products`


def sampled(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, groups: Sequence[tuple[int, int]], max_rows: int
) -> Sampled:
    """Groups of (prompt tokens, completions); one draw in twelve or so ends its completion."""
    model.generation_config.eos_token_id = list(range(20, 44))
    requests = [
        Request(Problem(f"problem-{number}", ""), tuple(range(60, 60 + prompt)), count)
        for number, (prompt, count) in enumerate(groups)
    ]
    with Costs() as costs:
        made = NativeEngine(model, tokenizer, seed=0, max_rows=max_rows).generate(requests, Sampling(max_tokens=48))
    lengths = [len(completion) for group in made for completion in group.completions]
    passes = costs.passes(mlp=MLP, vocabulary=VOCABULARY, layers=LAYERS)
    prefills = [(read, predicted) for read, predicted in passes if read > predicted]
    with one_thread():
        fewest = equal_rows(product_sizes(model), torch.float32).fewest
    steps = [read for read, predicted in passes if read == predicted]
    return Sampled(lengths, prefills, steps, costs.flops, fewest)


def test_sampling_reads_prompts_once_and_then_only_live_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
):
    cost = sampled(model, tokenizer, [(11, 7), (2, 1), (30, 4), (5, 2), (9, 8)], max_rows=64)
    lengths = cost.lengths
    assert len(set(lengths)) > 5
    assert cost.prefills == [(57, max(5, cost.fewest))]
    # The last token of a completion is not read: a row of n tokens takes part in the first n - 1 steps.
    live = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert sum(live) == sum(lengths) - 22
    assert cost.steps == [max(cost.fewest, rows) for rows in live]
    assert cost.flops == (57 + sum(cost.steps)) * READ + (max(5, cost.fewest) + sum(cost.steps)) * PREDICTED


def assert_only_live_rows(cost: Sampled, completions: int) -> None:
    """The last token of a completion is not read; the last few steps may be padded."""
    padding = sum(cost.steps) - (sum(cost.lengths) - completions)
    assert 0 <= padding <= (cost.fewest - 1) * cost.steps.count(cost.fewest)


def test_waiting_groups_move_in_as_rows_become_free(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
    cost = sampled(model, tokenizer, [(3, 1)] * 24, max_rows=8)
    lengths = cost.lengths
    assert sum(read for read, _ in cost.prefills) == 3 * 24
    assert_only_live_rows(cost, 24)
    # While anyone waits, fewer than 7 rows are stepped only where one that had just moved in ended at once. Moving in
    # eight at a time, all of them would wait for the longest.
    bound = (sum(lengths) - 24) / 7 + lengths.count(1) + max(lengths)
    by_eights = sum(max(lengths[first : first + 8]) - 1 for first in range(0, 24, 8))
    assert len(cost.steps) <= bound < by_eights


# One step of decoding


NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass
class Steps:
    """Each step of rows that never end: what torch did, and how many kernels were called; the first prefills too."""

    costs: list[Costs]
    kernels: list[int]

    @property
    def allocated(self) -> list[int]:
        return [costs.allocated for costs in self.costs]


def small_llama(layers: int) -> PreTrainedModel:
    """Of the tiny checkpoint's width, so that no size of it hides behind another."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(NAME)
    return model.eval()


@torch.no_grad()
def decoded(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    tokens: int,
    groups: int = 2,
    members: int = 4,
    prompt: int = 10,
    dtype: str = "float32",
    way: str = "compiled",
    called: Mapping[str, int] = NOTHING,
) -> Steps:
    """`called` counts kernels, see `count_kernels`."""
    units = [
        Unit(number, tuple(range(60, 60 + prompt)), tuple(range(members * number, members * (number + 1))), 0)
        for number in range(groups)
    ]
    shape = CacheShape(model.config.num_hidden_layers, 2, 16, groups, groups * members, prompt, tokens)
    precise = getattr(torch, dtype)
    forward = (
        CompiledForward(CompiledWeights(model, precise), shape)
        if way == "compiled"
        else ModuleForward(model, shape, precise)
    )
    decoding = Decoding(forward, tokenizer, UnitQueue(units), Sampling(max_tokens=tokens), (), CPU, version=0)
    steps, finished = Steps([], []), []
    for _ in range(tokens - 1):  # the first token is drawn from what the prefill gives
        before = sum(called.values())
        with autocast(CPU, dtype), Costs() as costs:
            finished += decoding.advance()
        steps.costs.append(costs)
        steps.kernels.append(sum(called.values()) - before)
    assert len(finished) == groups * members
    return steps


@needs_kernels
def test_a_decode_step_makes_few_calls(monkeypatch: pytest.MonkeyPatch, tokenizer: PreTrainedTokenizerBase):
    called = count_kernels(monkeypatch)
    two, six = (decoded(small_llama(layers), tokenizer, tokens=12, called=called) for layers in (2, 6))
    # One call for all layers, then drawing and appending; in aten room for the logits, and views of the rows.
    assert six.kernels[5] == two.kernels[5] == 3
    assert six.costs[5].calls == two.costs[5].calls <= 24
    # A layer is 7 products, the head is one more.
    assert [len(steps.costs[5].products) for steps in (two, six)] == [2 * 7 + 1, 6 * 7 + 1]


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decode_step_allocates_what_its_rows_need_at_any_position(tokenizer: PreTrainedTokenizerBase, dtype: str):
    rows = 8
    allocated = decoded(small_llama(LAYERS), tokenizer, tokens=80, dtype=dtype).allocated
    # Per row: the residual and its norm; in a layer queries, what attention gives, its output and the MLP's, keys and
    # values, gate and up; the logits. Beside them a few numbers per row: nothing that grows with the past, no weights.
    floats = rows * (2 * HIDDEN + LAYERS * (4 * HIDDEN + 2 * KV + 2 * MLP) + VOCABULARY)
    assert allocated[9] <= 4 * (floats + 32 * rows)
    assert allocated[9] == allocated[29] == allocated[59] == allocated[74]
    # Room for the rows' own keys and values comes in tiles of 16 tokens, two or more at a time: 32, 64 and all 80. The
    # last step has the completions to collect.
    grown = [size - allocated[9] for size in allocated[1:-1] if size > allocated[9]]
    assert len(grown) <= 2
    assert sum(grown) <= 4 * LAYERS * rows * 2 * KV * (64 + 80)


@needs_kernels
def test_decoding_some_rows_less_makes_the_same_products_in_bfloat16(tokenizer: PreTrainedTokenizerBase):
    five, eight = (
        decoded(small_llama(LAYERS), tokenizer, tokens=3, groups=1, members=members, dtype="bfloat16").costs[1]
        for members in (5, 8)
    )
    assert five.products == eight.products
    assert {product.rows for product in five.products} == {8}


# Log-probs


def test_the_logits_of_a_large_vocabulary_never_exist_as_a_whole(way: str):
    tokens, vocabulary, hidden = 240, 151_936, 16
    head = nn.Linear(hidden, vocabulary, bias=False)
    hidden_SH = torch.randn(tokens, hidden, requires_grad=True)
    with Costs() as costs:
        logprobs, _ = token_logprobs(head, hidden_SH, torch.arange(tokens), Sampling())
        logprobs.sum().backward()
    weights = 4 * vocabulary * hidden
    # All logits are 139 MiB, those of a chunk 128.
    assert costs.largest <= 128 * MIB
    assert costs.peak <= 128 * MIB + 2 * weights
    # The logits are made again backward, and nothing is made a third time.
    assert costs.flops <= 4 * 2 * tokens * vocabulary * hidden
