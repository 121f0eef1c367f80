"""AdamW and its schedule by hand, moments and weights of fewer bits, and a state that continues bit for bit."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.config.run import LearnerConfig, LoraConfig
from grouprl.learner import Optimizer
from grouprl.learner.rounded_adamw import rounded
from grouprl.models.adapters import add_adapter
from grouprl.models.load import fingerprint, load_model
from grouprl.types import UserError
from learner_setting import CPU


class TwoWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.second = nn.Parameter(torch.tensor([[0.5]]))
        self.frozen = nn.Parameter(torch.tensor([7.0]), requires_grad=False)


def set_gradients(model: nn.Module, values: list[float]) -> None:
    model.first.grad = torch.tensor(values[:2])
    model.second.grad = torch.tensor([values[2:]])


def weights_of(model: nn.Module) -> list[float]:
    return [*model.first.tolist(), *model.second.flatten().tolist()]


def rates(config: LearnerConfig, count: int, total: int | None = None) -> list[float]:
    model = TwoWeights()
    optimizer = Optimizer(model, config, total_updates=total)
    seen = []
    for _ in range(count):
        seen.append(optimizer.learning_rate)
        set_gradients(model, [1.0, 1.0, 1.0])
        optimizer.step()
    return seen


HALF = 0.4 * (1 + math.sqrt(0.5))  # cos(pi / 4)


@pytest.mark.parametrize(
    ("changes", "total", "expected"),
    [
        ({}, None, [0.8, 0.8]),
        ({"warmup_steps": 4}, None, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
        ({"warmup_steps": 0.3}, 6, [0.4, 0.8, 0.8, 0.8]),  # a share of the run: 1.8 updates, so 2
        ({"warmup_steps": 2, "schedule": "cosine"}, 6, [0.4, 0.8, 0.8, HALF, 0.4, 0.8 - HALF, 0.0, 0.0]),
        ({"schedule": "linear", "min_lr_ratio": 0.25}, 4, [0.8, 0.65, 0.5, 0.35, 0.2]),
    ],
    ids=str,
)
def test_the_rate_rises_and_falls_by_its_schedule(changes: dict[str, Any], total: int | None, expected: list[float]):
    got = rates(LearnerConfig(learning_rate=0.8, **changes), len(expected), total)
    assert got == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"warmup_steps": 2.5}, "learner.warmup_steps: expected a whole number of updates, or a share below 1"),
        ({"min_lr_ratio": 0.1}, "learner.min_lr_ratio: expected 0 with learner.schedule=constant"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused(given: dict[str, float], message: str):
    with pytest.raises(UserError, match=message):
        LearnerConfig(**given)


GRADIENTS = [[3.0, -4.0, 0.0], [0.1, 0.2, -0.05], [-0.4, 0.3, 1.2], [0.01, 0.0, -0.02], [0.2, 0.2, 0.2]]


def test_updates_are_adamw_with_clipping_by_hand():
    config = LearnerConfig(learning_rate=0.1, warmup_steps=3, betas=(0.8, 0.95), weight_decay=0.5, max_grad_norm=1.0)
    model = TwoWeights()
    optimizer = Optimizer(model, config)
    weights, mean, square = weights_of(model), [0.0] * 3, [0.0] * 3
    for update, gradient in enumerate(GRADIENTS, 1):
        set_gradients(model, gradient)
        norm = math.sqrt(sum(g * g for g in gradient))
        assert optimizer.step() == pytest.approx(norm, rel=1e-6)
        rate = 0.1 * min(update, 3) / 3
        for at, g in enumerate(gradient):
            g *= min(1.0, 1.0 / norm)
            mean[at] = 0.8 * mean[at] + 0.2 * g
            square[at] = 0.95 * square[at] + 0.05 * g * g
            step = mean[at] / (1 - 0.8**update) / (math.sqrt(square[at] / (1 - 0.95**update)) + 1e-8)
            decay = 0.5 if at == 2 else 0.0  # `first` is a vector, such as a bias
            weights[at] = weights[at] * (1 - rate * decay) - rate * step
        assert weights_of(model) == pytest.approx(weights, abs=2e-6)
    assert model.frozen.tolist() == [7.0]
    assert optimizer.updates == len(GRADIENTS)


def test_only_matrices_decay(tiny: Path):
    """One weight has a gradient; without decay all others would stay, bit for bit."""
    model = load_model(str(tiny), device=CPU)
    then = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        weight.grad = torch.full_like(weight, 1.0 if name == "model.norm.weight" else 0.0)
    Optimizer(model, LearnerConfig(learning_rate=0.1, weight_decay=0.5)).step()
    now = dict(model.named_parameters())
    kept = {name for name in then if now[name].equal(then[name])}
    vectors = {name for name in then if name.endswith((".bias", "norm.weight"))}
    assert kept == vectors - {"model.norm.weight"}
    for name in then.keys() - vectors:  # the embedding among them, as in transformers' Trainer
        torch.testing.assert_close(now[name].detach(), then[name] * 0.95)


@pytest.mark.parametrize("moments", ["float32", "8bit"])
def test_a_gradient_of_zero_is_no_update(moments: str):
    model = TwoWeights()
    optimizer = Optimizer(model, LearnerConfig(learning_rate=0.1, weight_decay=0.5, moments=moments))
    set_gradients(model, [1.0, 1.0, 1.0])
    optimizer.step()
    weights, state = weights_of(model), optimizer.state()
    set_gradients(model, [0.0, 0.0, 0.0])
    assert optimizer.step() == 0.0
    assert (weights_of(model), optimizer.updates) == (weights, 1)
    torch.testing.assert_close(optimizer.state(), state, rtol=0, atol=0)
    assert model.first.grad is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float):
    model = TwoWeights()
    optimizer = Optimizer(model, LearnerConfig(learning_rate=0.1, weight_decay=0.1))
    set_gradients(model, [1.0, 1.0, 1.0])
    optimizer.step()
    weights, state = weights_of(model), optimizer.state()
    set_gradients(model, [1.0, bad, 1.0])
    with pytest.raises(FloatingPointError, match="update 2"):
        optimizer.step()
    assert weights_of(model) == weights
    torch.testing.assert_close(optimizer.state(), state, rtol=0, atol=0)
    assert optimizer.updates == 1


# The state


def model_gradients(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


def test_a_restored_optimizer_continues_bit_for_bit(tiny: Path):
    config = LearnerConfig(learning_rate=0.01, warmup_steps=4, weight_decay=0.01, schedule="cosine")
    model = load_model(str(tiny), device=CPU)
    optimizer = Optimizer(model, config, total_updates=9)
    for seed in range(3):
        model_gradients(model, seed)
        optimizer.step()
    kept, state, updates = copy.deepcopy(model), optimizer.state(), optimizer.updates
    unchanged = {name: tensor.clone() for name, tensor in state.items()}
    for seed in range(3, 6):
        model_gradients(model, seed)
        optimizer.step()
    assert all(torch.equal(state[name], unchanged[name]) for name in state)  # a copy, not a view

    restored = Optimizer(kept, config, total_updates=9)
    restored.load_state(state, updates)
    for seed in range(3, 6):
        model_gradients(kept, seed)
        restored.step()
    assert all(torch.equal(state[name], unchanged[name]) for name in state)
    assert fingerprint(kept) == fingerprint(model)
    assert restored.learning_rate == optimizer.learning_rate


def test_the_state_of_other_weights_is_refused():
    state: dict[str, Tensor] = {"third/exp_avg": torch.zeros(1)}
    with pytest.raises(UserError, match="third"):
        Optimizer(TwoWeights(), LearnerConfig()).load_state(state, 1)


# Random rounding against its exact expectation, and updates in bfloat16 against AdamW in float32

# Above 1 numbers of bfloat16 are 2^-7 apart.
STEP = 2.0**-7


def draws(value: float, count: int = 40_000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return rounded(torch.full((count,), value), generator).double()


@pytest.mark.parametrize("part", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_is_unbiased_with_the_variance_of_a_coin(part: float, sign: int) -> None:
    """1 + part * step becomes 1 + step with probability `part`: mean part, variance part * (1 - part) steps."""
    found = (draws(sign * (1 + part * STEP)) * sign - 1) / STEP
    assert set(found.tolist()) == {0.0, 1.0}
    assert float(found.mean()) == pytest.approx(part, abs=4 * (part * (1 - part) / 40_000) ** 0.5)
    assert float(found.var()) == pytest.approx(part * (1 - part), abs=0.01)


def test_numbers_of_bfloat16_stay() -> None:
    for value in (0.0, 1.0, -1.5, 2.0**-130, 3.0e38):
        exact = torch.tensor(value).bfloat16().float()
        assert torch.equal(draws(float(exact), 100), exact.double().expand(100))


class Weights(nn.Module):
    def __init__(self, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(count, 1, dtype=dtype))
        self.vector = nn.Parameter(torch.ones(2))


def updated(dtype: torch.dtype, *, count: int, updates: int, seed: int = 0, rate: float = STEP / 20) -> Weights:
    model = Weights(count, dtype)
    config = LearnerConfig(learning_rate=rate, weight_decay=0.1, betas=(0.9, 0.99), max_grad_norm=0.5)
    optimizer = Optimizer(model, config, seed=seed)
    for number in range(updates):
        for weight in (model.matrix, model.vector):
            weight.grad = torch.full_like(weight, -(1.5 if number % 3 else -0.25))
        optimizer.step()
    return model


def test_updates_below_half_a_step_move_the_weights_in_expectation() -> None:
    """32 updates of about 1/20 of a step: nearest rounding would undo each; the mean of 20,000 weights follows."""
    exact = updated(torch.float32, count=20_000, updates=32)
    narrow = updated(torch.bfloat16, count=20_000, updates=32)
    moved, wanted = ((float(one.matrix.detach().double().mean()) - 1) / STEP for one in (narrow, exact))
    assert 0.1 < wanted < 0.5
    assert narrow.matrix.dtype == torch.bfloat16
    # The deviation of the mean is below sqrt(1/4 / 20,000) = 0.004 steps.
    assert moved == pytest.approx(wanted, abs=0.015)
    torch.testing.assert_close(narrow.vector, exact.vector, rtol=1e-6, atol=0)  # float32 beside bfloat16


def test_the_draws_are_those_of_seed_weight_and_update(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (updated(torch.bfloat16, count=5000, updates=3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.matrix, again.matrix)
    assert not torch.equal(first.matrix, other.matrix)
    torch.manual_seed(99)  # the global generator has no part in it
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(first.matrix, updated(torch.bfloat16, count=5000, updates=3, seed=1).matrix)
    finally:
        torch.set_num_threads(before)


def test_matrices_are_rounded_and_vectors_and_adapters_are_not(tiny: Path) -> None:
    whole, model = load_model(str(tiny), device=CPU), load_model(str(tiny), device=CPU, weights="bfloat16")
    for (name, exact), kept in zip(whole.named_parameters(), model.parameters(), strict=True):
        assert kept.dtype == (torch.bfloat16 if exact.ndim > 1 else torch.float32), name
        assert torch.equal(kept, exact.to(kept.dtype))
    pytest.importorskip("peft")
    adapted = add_adapter(model, LoraConfig(rank=2), seed=0)
    assert {weight.dtype for weight in adapted.parameters() if weight.requires_grad} == {torch.float32}


def second_moments(moments: str) -> torch.Tensor:
    model = Weights(4000, torch.float32)
    optimizer = Optimizer(model, LearnerConfig(learning_rate=0.0, moments=moments, max_grad_norm=1e9))  # type: ignore[arg-type]
    for number in range(300):
        model.matrix.grad = torch.full_like(model.matrix, 1.0 if number < 10 else 0.01)
        model.vector.grad = None
        optimizer.step()
    return optimizer.state()["matrix/exp_avg_sq"]


def test_a_second_moment_in_bfloat16_decays_as_in_float32() -> None:
    """It falls by 0.1 % an update, a quarter of half a step of bfloat16: rounded to the nearest it would stay."""
    exact, narrow = second_moments("float32"), second_moments("bfloat16")
    assert narrow.dtype == torch.bfloat16
    peak = 1 - 0.999**10
    assert float(exact.mean()) < 0.8 * peak
    assert float(narrow.float().mean()) == pytest.approx(float(exact.mean()), rel=0.005)


# Moments in 8 bits against AdamW in float32, saved and loaded, and what bitsandbytes cannot do


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 64)
        self.matrix = nn.Parameter(torch.randn(96, 64, generator=torch.Generator().manual_seed(1)))
        self.vector = nn.Parameter(torch.ones(64))
        with torch.no_grad():
            self.embedding.weight.copy_(self.matrix)

    def named(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.named_parameters()}


def moments_config(moments: str, **changes: object) -> LearnerConfig:
    return LearnerConfig(learning_rate=1e-3, weight_decay=0.1, betas=(0.9, 0.99), moments=moments, **changes)  # type: ignore[arg-type]


def update_layers(model: Layers, optimizer: Optimizer, numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()


def updated_layers(moments: str, updates: int = 10) -> tuple[Layers, Optimizer]:
    model = Layers()
    optimizer = Optimizer(model, moments_config(moments))
    update_layers(model, optimizer, range(updates))
    return model, optimizer


def test_ten_updates_follow_those_in_float32() -> None:
    """8 bits move each weight by about as much; embeddings and small weights by the same but for their rounding."""
    start, (exact, _), (small, _) = Layers(), updated_layers("float32"), updated_layers("8bit")
    before = start.matrix.detach()
    moved, wanted = small.matrix.detach() - before, exact.matrix.detach() - before
    off = moved - wanted
    assert 0 < float(off.norm() / wanted.norm()) < 0.03
    # Rounding has no direction: the mean of 6,144 weights stays.
    assert float(off.mean()) == pytest.approx(0, abs=4 * float(off.std()) / 6144**0.5)
    for name in ("embedding.weight", "vector"):
        torch.testing.assert_close(small.named()[name], exact.named()[name], rtol=0, atol=2e-6)


def test_the_matrix_takes_a_byte_a_number_and_a_scale_for_256() -> None:
    moments = updated_layers("8bit", updates=1)[1].moments()
    sizes = {name: (value.dtype, value.numel()) for name, value in moments.items()}
    assert sizes["matrix/state1"] == sizes["matrix/state2"] == (torch.uint8, 96 * 64)
    assert sizes["matrix/absmax1"] == sizes["matrix/absmax2"] == (torch.float32, 96 * 64 // 256)
    for name in ("embedding.weight", "vector"):
        assert moments[f"{name}/state1"].dtype == torch.float32
    assert {name.partition("/")[2] for name in moments} == {"state1", "state2", "absmax1", "absmax2", "step"}


def test_a_state_that_is_saved_and_loaded_continues_to_the_bit() -> None:
    whole, _ = updated_layers("8bit", updates=6)
    model, optimizer = updated_layers("8bit", updates=3)
    again = Layers()
    again.load_state_dict(model.state_dict())
    resumed = Optimizer(again, moments_config("8bit"))
    resumed.load_state(optimizer.state(), updates=3)
    update_layers(again, resumed, range(3, 6))
    assert resumed.updates == 6
    for name, weight in whole.named().items():
        assert torch.equal(again.named()[name], weight), name
    # An optimizer that has made updates goes back to a saved state as well.
    again.load_state_dict(model.state_dict())
    resumed.load_state(optimizer.state(), updates=3)
    update_layers(again, resumed, range(3, 6))
    assert torch.equal(again.matrix, whole.matrix)


def test_a_state_of_other_moments_is_refused() -> None:
    state = updated_layers("float32", updates=1)[1].state()
    with pytest.raises(UserError, match=r"expected optimizer state of .*state1.*, got exp_avg.*learner\.moments"):
        Optimizer(Layers(), moments_config("8bit")).load_state(state, updates=1)


def test_weights_in_bfloat16_have_no_moments_in_8_bits() -> None:
    with pytest.raises(UserError, match=r"learner\.moments=8bit: expected trained weights in float32, got bfloat16"):
        Optimizer(Layers().bfloat16(), moments_config("8bit"))


@pytest.mark.parametrize(
    ("moments", "reason"),
    [("8bit", "on a CPU"), ("float32", "on a CPU"), ("bfloat16", r"with learner\.moments=bfloat16")],
)
def test_moments_that_cannot_be_paged_are_refused(moments: str, reason: str) -> None:
    with pytest.raises(UserError, match=rf"learner\.paged: expected false {reason}"):
        Optimizer(Layers(), moments_config(moments, paged=True))
