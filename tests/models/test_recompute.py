"""Activation checkpointing: the backward pass keeps less memory, and nothing else changes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.forward.attention import hidden_states
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.recompute import recompute_activations, recomputes
from grouprl.models.load import load_model
from tiny import Kind, tiny_model_folder

CPU = torch.device("cpu")
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
def test_the_gradient_is_the_same_and_less_is_kept(
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
