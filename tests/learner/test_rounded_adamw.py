"""Random rounding against its exact expectation, and updates in bfloat16 against AdamW in float32 of torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from grouprl.config.run import LearnerConfig, LoraConfig
from grouprl.learner import Optimizer
from grouprl.learner.rounded_adamw import rounded
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_model

CPU = torch.device("cpu")
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
