"""Tokens that begin every prompt are read once a step: the same gradient and numbers as when each group reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from grouprl.config.run import LoraConfig
from grouprl.forward.layouts import Prefix
from grouprl.forward.prefix import LearnedPrefix, same_tokens, shared_tokens
from grouprl.forward.recompute import recompute_activations
from grouprl.kernels import calibration
from grouprl.learner import runner as runner_module
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_tokenizer
from grouprl.rollout import NativeEngine, Request, make_requests
from grouprl.rollout.native import common_tokens
from grouprl.types import Group, Problem, Sampling
from learner_setting import EXAMPLES, SAMPLING, batch_of, gap, learn, learner_of, loaded, sampled
from plain_learning import ALGORITHMS, moved, plain_gradient
from variants import variant


@pytest.fixture(params=["kernel", "torch"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_kernel_wins", lambda *_: request.param == "kernel")


@pytest.fixture(scope="module")
def groups(tiny: Path) -> list[Group]:
    return sampled(tiny, SAMPLING, before=EXAMPLES)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def asked_of(folder: Path, *texts: str) -> list[Request]:
    """Two completions for each text after the same examples."""
    visits = [(Problem(text, EXAMPLES + text), "") for text in texts]
    return make_requests(visits, load_tokenizer(str(folder)), completions=2, longest_prompt=500)


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every group reads its whole prompt."""
    monkeypatch.setattr(runner_module, "shared_tokens", lambda prompts: 0)


def test_what_all_prompts_begin_with_is_found_in_whole_tiles() -> None:
    same = tuple(range(100, 170))
    assert shared_tokens([(*same, 1, 2), (*same, 3), (*same, 1, 4)]) == 64
    assert shared_tokens([(*same[:48], 1), (*same[:48], 2)]) == 48
    assert shared_tokens([same[:48], same]) == 32  # one token of each stays
    assert shared_tokens([(*same[:31], 1), (*same[:31], 2)]) == 16
    assert shared_tokens([(*same[:15], 1), (*same[:15], 2)]) == 0  # too few
    assert shared_tokens([same, same]) == 0  # one prompt: its group reads it once anyway
    assert shared_tokens([(1, *same), (2, *same)]) == 0
    assert shared_tokens([]) == 0
    assert [same_tokens([(1, 2, 3), (1, end, 3), (1, 2, 3, 4)]) for end in (2, 9, 0)] == [3, 1, 1]


def test_of_a_prefix_only_what_is_learned_takes_a_gradient() -> None:
    frozen, learned = torch.ones(2, 1, 4), torch.ones(2, 1, 4, requires_grad=True)
    prefix = LearnedPrefix(Prefix([frozen, learned * 2], [frozen, frozen]))
    assert [leaf is prefix.read.keys[1] for leaf in prefix.leaves] == [True]
    prefix.leaves[0].sum().backward()
    prefix.backward()
    assert learned.grad is not None
    assert learned.grad.tolist() == torch.full((2, 1, 4), 2.0).tolist()


@pytest.fixture(scope="module")
def expected(tiny: Path, groups: list[Group]) -> dict[str, torch.Tensor]:
    return plain_gradient(tiny, loaded(tiny), moved(batch_of(groups)), ALGORITHMS[-1])


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("budget", [1, 45, 10**6])
def test_the_gradient_is_that_of_padded_rows(
    tiny: Path, groups: list[Group], expected: dict[str, torch.Tensor], budget: int
) -> None:
    batch = moved(batch_of(groups))
    assert shared_tokens(batch.prompts) >= 32
    learner = learner_of(loaded(tiny), ALGORITHMS[-1], micro_batch_tokens=budget)
    learn(learner, batch)
    assert gap(learner.optimizer.gradient, expected) < 2e-5


def changed(model: PreTrainedModel, case: str) -> PreTrainedModel:
    if case == "adapter":
        torch.manual_seed(0)
        model = add_adapter(model, LoraConfig(rank=4, alpha=6), seed=0)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.1)
    if case == "recompute":
        recompute_activations(model)
    if case == "window":
        for layer in model.get_decoder().layers:
            layer.self_attn.sliding_window = 20
    return model.double() if case == "float64" else model


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    ("form", "case"),
    [("kernel", "adapter"), ("kernel", "recompute"), ("torch", "window"), ("kernel", "penalty"), ("torch", "float64")],
    indirect=["form"],
)
def test_nothing_else_notices(tiny: Path, groups: list[Group], monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    batch, algorithm = moved(batch_of(groups)), variant(kl_coef=0.1, passes=2)
    if case == "penalty":
        batch = replace(batch, sampling=Sampling(max_tokens=12, repetition_penalty=1.3))
    gradients, metrics = [], []
    for whole in (False, True):
        if whole:
            apart(monkeypatch)
        learner = learner_of(changed(loaded(tiny), case), algorithm, micro_batch_tokens=60)
        metrics.append(learn(learner, batch))
        gradients.append(learner.optimizer.gradient)
    assert gap(*gradients) < 1e-5
    for name, value in metrics[1].items():
        if not name.startswith("time/"):
            assert metrics[0][name] == pytest.approx(value, rel=1e-4, abs=2e-5), name


def test_its_gradient_is_the_same_bits_on_two_threads(tiny: Path, groups: list[Group], threads: None) -> None:
    batch, found = batch_of(groups), []
    for count in (1, 2):
        torch.set_num_threads(count)
        learner = learner_of(loaded(tiny), variant(kl_coef=0.1), micro_batch_tokens=45)
        learn(learner, batch)
        found.append(learner.optimizer.gradient)
    assert all(torch.equal(one, found[1][name]) for name, one in found[0].items())


def test_it_is_read_once_whatever_the_packs(tiny: Path, groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_kernel_wins", lambda *_: False)
    batch = batch_of(groups)
    before = shared_tokens(batch.prompts)
    read = [sum(map(len, batch.prompts)) - 3 * before + int(batch.mask_NT.sum()) - len(batch.mask_NT)]

    def tokens_of_forward_passes() -> int:
        learner, count = learner_of(loaded(tiny), variant(kl_coef=0.0), micro_batch_tokens=10**6), []
        learner.policy.get_input_embeddings().register_forward_hook(lambda *given: count.append(given[1][0].numel()))
        learn(learner, batch, torch.linspace(-1, 1, 11))
        return sum(count)

    assert tokens_of_forward_passes() == before + read[0]
    apart(monkeypatch)
    assert tokens_of_forward_passes() == 3 * before + read[0]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("dtype", "within"), [("float32", 2e-5), ("bfloat16", 0.1)])
def test_sampling_reads_it_once_and_draws_the_same(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, within: float
) -> None:
    model, tokenizer, sampling = loaded(tiny), load_tokenizer(str(tiny)), Sampling(max_tokens=9, temperature=0.7)
    together = asked_of(tiny, "4", "John has 15 apples.", "There are 4 boxes with 6 pens each.", "x")
    assert {one.before for one in together} == {shared_tokens(one.prompt_ids for one in together)} != {0}
    found = []
    for asked in (together, [replace(one, before=0) for one in together]):
        engine = NativeEngine(model, tokenizer, seed=3, max_rows=6, dtype=dtype)
        found.append(engine.generate(asked, sampling))
    for once, each in zip(*found, strict=True):
        assert once.prompt_ids == each.prompt_ids
        for one, other in zip(once.completions, each.completions, strict=True):
            if dtype == "float32":
                assert one.token_ids == other.token_ids
            same = [a == b for a, b in zip(one.token_ids, other.token_ids, strict=False)]
            until = same.index(False) if False in same else len(same)
            assert one.logprobs[:until] == pytest.approx(other.logprobs[:until], abs=within)


def test_a_prompt_s_tokens_are_prefilled_once(tiny: Path) -> None:
    model, asked, count = loaded(tiny), asked_of(tiny, "4", "John has 15 apples.", "There are 4 boxes."), []
    model.get_input_embeddings().register_forward_hook(lambda *given: count.append(given[1][0].numel()))
    NativeEngine(model, load_tokenizer(str(tiny)), seed=3, max_rows=6).generate(asked, Sampling(max_tokens=1))
    assert sum(count) == asked[0].before + sum(len(one.prompt_ids) - one.before for one in asked)


def test_whoever_samples_which_groups_reads_the_same_tokens_once(tiny: Path) -> None:
    """Ranks and remote samplers get a part of a step's requests, which share more than all of them do."""
    apples = ("John has 15 apples and 3 pens and 2 books.", "John has 15 apples and 3 pens and 7 books.")
    asked = asked_of(tiny, *apples, "4", "x")
    assert shared_tokens(one.prompt_ids for one in asked[:2]) > asked[0].before >= 32
    assert common_tokens(asked[:2]) == common_tokens(asked) == asked[0].before
    assert common_tokens([*asked[:2], replace(asked[2], prompt_ids=(7, *asked[2].prompt_ids))]) == 0
