"""AdamW, warm-up and clipping against arithmetic in Python, and a state that continues bit for bit."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, get_scheduler

from grouprl.config.run import LearnerConfig
from grouprl.learner import Optimizer
from grouprl.models.load import fingerprint, load_model
from grouprl.types import UserError


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


def test_the_rate_rises_to_its_value_and_stays():
    assert rates(LearnerConfig(learning_rate=0.8, warmup_steps=4), 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert rates(LearnerConfig(learning_rate=0.8), 2) == [0.8, 0.8]


def test_the_rate_falls_along_a_cosine_to_the_last_update():
    got = rates(LearnerConfig(learning_rate=0.8, warmup_steps=2, schedule="cosine"), 8, total=6)
    half = 0.4 * (1 + math.sqrt(0.5))  # cos(pi / 4)
    assert got == pytest.approx([0.4, 0.8, 0.8, half, 0.4, 0.8 - half, 0.0, 0.0], abs=1e-9)


def test_the_rate_falls_along_a_line_to_its_last_share():
    config = LearnerConfig(learning_rate=0.8, schedule="linear", min_lr_ratio=0.25)
    assert rates(config, 5, total=4) == pytest.approx([0.8, 0.65, 0.5, 0.35, 0.2])


def test_a_warm_up_below_one_is_a_share_of_the_run():
    config = LearnerConfig(learning_rate=0.8, warmup_steps=0.3)  # of 6 updates: 1.8, so 2
    assert rates(config, 4, total=6) == pytest.approx([0.4, 0.8, 0.8, 0.8])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_the_rates_after_the_warm_up_are_those_of_transformers(schedule: str, warmup: int):
    model = TwoWeights()
    theirs = torch.optim.SGD(model.parameters(), lr=0.8)
    scheduler = get_scheduler(schedule, theirs, num_warmup_steps=warmup, num_training_steps=11)
    expected = []
    for _ in range(11):
        expected.append(scheduler.get_last_lr()[0])
        theirs.step()
        scheduler.step()
    ours = rates(LearnerConfig(learning_rate=0.8, warmup_steps=warmup, schedule=schedule), 11, total=11)
    assert ours[warmup:] == pytest.approx(expected[warmup:], abs=1e-12)
    assert ours[:warmup] == pytest.approx(expected[1 : warmup + 1])  # theirs begins with an update of rate 0


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
    model = load_model(str(tiny), device=torch.device("cpu"))
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


def test_a_gradient_of_zero_is_no_update(tiny: Path):
    model = TwoWeights()
    optimizer = Optimizer(model, LearnerConfig(learning_rate=0.1, weight_decay=0.5))
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
    model = load_model(str(tiny), device=torch.device("cpu"))
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
