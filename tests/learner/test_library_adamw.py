"""Moments in 8 bits against AdamW in float32 of torch, saved and loaded, and what bitsandbytes cannot do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from grouprl import UserError
from grouprl.config.run import LearnerConfig
from grouprl.learner import Optimizer


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 64)
        self.matrix = nn.Parameter(torch.randn(96, 64, generator=torch.Generator().manual_seed(1)))
        self.vector = nn.Parameter(torch.ones(64))
        with torch.no_grad():
            self.embedding.weight.copy_(self.matrix)

    def named(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.named_parameters()}


def config_of(moments: str, **changes: object) -> LearnerConfig:
    return LearnerConfig(learning_rate=1e-3, weight_decay=0.1, betas=(0.9, 0.99), moments=moments, **changes)  # type: ignore[arg-type]


def update(model: Weights, optimizer: Optimizer, numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()


def updated(moments: str, updates: int = 10) -> tuple[Weights, Optimizer]:
    model = Weights()
    optimizer = Optimizer(model, config_of(moments))
    update(model, optimizer, range(updates))
    return model, optimizer


def test_ten_updates_follow_those_in_float32() -> None:
    """8 bits move each weight by about as much; embeddings and small weights by the same but for their rounding."""
    start, (exact, _), (small, _) = Weights(), updated("float32"), updated("8bit")
    before = start.matrix.detach()
    moved, wanted = small.matrix.detach() - before, exact.matrix.detach() - before
    off = moved - wanted
    assert 0 < float(off.norm() / wanted.norm()) < 0.03
    # Rounding has no direction: the mean of 6,144 weights stays.
    assert float(off.mean()) == pytest.approx(0, abs=4 * float(off.std()) / 6144**0.5)
    for name in ("embedding.weight", "vector"):
        torch.testing.assert_close(small.named()[name], exact.named()[name], rtol=0, atol=2e-6)


def test_the_matrix_takes_a_byte_a_number_and_a_scale_for_256() -> None:
    moments = updated("8bit", updates=1)[1].moments()
    sizes = {name: (value.dtype, value.numel()) for name, value in moments.items()}
    assert sizes["matrix/state1"] == sizes["matrix/state2"] == (torch.uint8, 96 * 64)
    assert sizes["matrix/absmax1"] == sizes["matrix/absmax2"] == (torch.float32, 96 * 64 // 256)
    for name in ("embedding.weight", "vector"):
        assert moments[f"{name}/state1"].dtype == torch.float32
    assert {name.partition("/")[2] for name in moments} == {"state1", "state2", "absmax1", "absmax2", "step"}


def test_a_state_that_is_saved_and_loaded_continues_to_the_bit() -> None:
    whole, _ = updated("8bit", updates=6)
    model, optimizer = updated("8bit", updates=3)
    again = Weights()
    again.load_state_dict(model.state_dict())
    resumed = Optimizer(again, config_of("8bit"))
    resumed.load_state(optimizer.state(), updates=3)
    update(again, resumed, range(3, 6))
    assert resumed.updates == 6
    for name, weight in whole.named().items():
        assert torch.equal(again.named()[name], weight), name
    # An optimizer that has made updates goes back to a saved state as well.
    again.load_state_dict(model.state_dict())
    resumed.load_state(optimizer.state(), updates=3)
    update(again, resumed, range(3, 6))
    assert torch.equal(again.matrix, whole.matrix)


def test_a_state_of_other_moments_is_refused() -> None:
    state = updated("float32", updates=1)[1].state()
    with pytest.raises(UserError, match=r"expected optimizer state of .*state1.*, got exp_avg.*learner\.moments"):
        Optimizer(Weights(), config_of("8bit")).load_state(state, updates=1)


def test_a_gradient_of_zero_is_no_update() -> None:
    model, optimizer = updated("8bit", updates=2)
    before, state = model.named(), optimizer.state()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert optimizer.updates == 2
    assert all(torch.equal(before[name], weight) for name, weight in model.named().items())
    assert all(torch.equal(state[name], value) for name, value in optimizer.state().items())


def test_weights_in_bfloat16_are_refused() -> None:
    with pytest.raises(UserError, match=r"learner\.moments=8bit: expected trained weights in float32, got bfloat16"):
        Optimizer(Weights().bfloat16(), config_of("8bit"))


@pytest.mark.parametrize("moments", ["8bit", "float32"])
def test_paged_moments_are_refused_on_a_cpu(moments: str) -> None:
    with pytest.raises(UserError, match=r"learner\.paged: expected false on a CPU"):
        Optimizer(Weights(), config_of(moments, paged=True))


def test_moments_in_bfloat16_are_not_paged() -> None:
    with pytest.raises(UserError, match=r"learner\.paged: expected false with learner\.moments=bfloat16"):
        config_of("bfloat16", paged=True)
