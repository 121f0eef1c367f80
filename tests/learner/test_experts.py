"""The loss that balances experts: by hand, against transformers' own on whole sequences, by differences, over packs."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from grouprl import Algorithm
from grouprl.algorithms import balance_loss
from grouprl.forward.experts import noted_routing, watch_routers
from grouprl.forward.precision import autocast
from grouprl.learner import make_batch
from grouprl.learner.packs import Pack, make_packs, pack_forward
from grouprl.types import Batch, Sampling, UserError
from learner_setting import gap, learn, learner_of, loaded, sampled
from source_tree import ROOT
from variants import variant

sys.path.insert(0, str(ROOT / "benchmarks"))

import families

PLAIN = Sampling(max_tokens=12)
NOTHING = torch.zeros(11)  # no advantage: the balance alone moves the policy
BALANCED = variant(kl_coef=0.0, router_aux_coef=0.5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Mixtral is packed; DeepSeek-V3 is read in rows with padding."""
    tmp = tmp_path_factory.mktemp("experts")
    return {name: families.family_folder(tmp, name) for name in ("mixtral", "deepseek_v3")}


@pytest.fixture(scope="module")
def batches(folders: dict[str, Path]) -> dict[str, Batch]:
    batches = {name: make_batch(sampled(folder, PLAIN), PLAIN) for name, folder in folders.items()}
    return batches | {"truncated": make_batch(sampled(folders["mixtral"], PLAIN), PLAIN, mask_overlong=True)}


def test_a_loss_by_hand() -> None:
    # Three of four tokens choose expert 0, with mean probabilities of 0.65 and 0.35: 2 (0.75 * 0.65 + 0.25 * 0.35).
    probs_C = torch.tensor([0.9, 0.8, 0.7, 0.2])
    uneven_CE = torch.stack([probs_C, 1 - probs_C], -1).log() + 3.0
    even_CE = torch.zeros(4, 2)  # a balanced layer is 1: a token chooses one expert
    logits_DCE, shares_DE = torch.stack([uneven_CE, even_CE]), torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    whole = balance_loss(logits_DCE, shares_DE, tokens=4)
    assert float(whole) == pytest.approx((1.15 + 1.0) / 2)
    parts = [balance_loss(logits_DCE[:, part], shares_DE, tokens=4) for part in (slice(0, 1), slice(1, 4))]
    assert float(sum(parts)) == pytest.approx(float(whole))


def own_loss(folder: Path, batch: Batch) -> tuple[Tensor, PreTrainedModel]:
    """Transformers' loss of each layer, from the router logits of one whole sequence after the other."""
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    layers: list[list[Tensor]] = []
    for group, ids_T, mask_T in zip(batch.group_of_N, batch.token_ids_NT, batch.trained_NT, strict=True):
        prompt, completion = batch.prompts[group], ids_T[mask_T].tolist()
        found = own.get_decoder()(torch.tensor([[*prompt, *completion]]), output_router_logits=True).router_logits
        layers.append([logits[len(prompt) - 1 : -1] for logits in found])
    losses = [load_balancing_loss_func((torch.cat(layer),), 4, 2) for layer in zip(*layers, strict=True)]
    return torch.stack(losses).mean(), own


@pytest.mark.parametrize(
    ("name", "completions"), [("mixtral", "mixtral"), ("deepseek_v3", "deepseek_v3"), ("mixtral", "truncated")]
)
def test_the_loss_is_that_of_transformers_for_each_layer(
    folders: dict[str, Path], batches: dict[str, Batch], name: str, completions: str
) -> None:
    batch = batches[completions]
    learner = learner_of(loaded(folders[name]), BALANCED)
    metrics = learn(learner, batch, NOTHING)
    assert bool((batch.mask_NT != batch.trained_NT).any()) is (completions == "truncated")
    loss, own = own_loss(folders[name], batch)
    assert float(loss.detach()) > 2.01  # not balanced
    assert metrics["router_aux_loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert metrics["loss"] == pytest.approx(0.5 * float(loss.detach()), rel=1e-5)
    (0.5 * loss).backward()
    expected = {weight: tensor.grad for weight, tensor in own.named_parameters()}
    moved = {weight: tensor for weight, tensor in expected.items() if tensor is not None and tensor.any()}
    assert len(moved) > 10
    assert gap({weight: learner.optimizer.gradient[weight] for weight in moved}, moved) < 2e-5


def test_several_packs_give_the_gradient_of_one(folders: dict[str, Path], batches: dict[str, Batch]) -> None:
    found = {}
    for tokens in (10**6, 45):
        learner = learner_of(loaded(folders["mixtral"]), variant(router_aux_coef=0.5), micro_batch_tokens=tokens)
        found[tokens] = learn(learner, batches["mixtral"]), learner.optimizer.gradient
    assert found[45][0]["router_aux_loss"] == pytest.approx(found[10**6][0]["router_aux_loss"], rel=1e-5)
    assert gap(found[45][1], found[10**6][1]) < 2e-5


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_passes_that_are_noted_together_have_what_each_has_alone(
    folders: dict[str, Path], batches: dict[str, Batch], name: str
) -> None:
    # In bfloat16 a pack has padding, whose routing is not a token's; a pass drops its own padding alone.
    model, batch = loaded(folders[name]), batches[name]
    watch_routers(model)
    packs = [next(iter(make_packs(batch, rows, 10**6, torch.device("cpu")))) for rows in ([0, 1], [2])]

    def passes(*packs: Pack) -> list[Tensor]:
        with torch.no_grad(), autocast(torch.device("cpu"), "bfloat16"), noted_routing() as noted:
            for pack in packs:
                pack_forward(model, pack, batch.sampling)
        return [routing.experts_SK for routing in noted]

    together, alone = passes(*packs), [*passes(packs[0]), *passes(packs[1])]
    assert len({len(experts_SK) for experts_SK in together}) == 2
    assert all(map(torch.equal, together, alone))


def test_a_model_without_experts_is_refused(tiny: Path) -> None:
    with pytest.raises(UserError, match="router_aux_coef: expected a model with experts"):
        learner_of(loaded(tiny), Algorithm(experts=BALANCED.experts))


@pytest.mark.parametrize("name", ["qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe", "phimoe", "jamba"])
@pytest.mark.slow
def test_other_families(name: str, tmp_path: Path) -> None:
    folder = families.family_folder(tmp_path, name)
    batch = make_batch(sampled(folder, PLAIN), PLAIN)
    metrics = learn(learner_of(loaded(folder), BALANCED), batch, NOTHING)
    assert metrics["router_aux_loss"] == pytest.approx(float(own_loss(folder, batch)[0].detach()), rel=1e-5)
