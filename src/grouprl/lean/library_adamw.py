"""AdamW of bitsandbytes: moments in 8 bits (arXiv:2110.02861), or paged ones, which leave a GPU that is full.

In 8 bits, blocks of 256 numbers of a moment share a scale. Embeddings keep float32, as in transformers' Trainer and so
in TRL, and so do weights of fewer than 4,096 numbers. Paged moments (arXiv:2305.14314, section 3) are in CUDA's managed
memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from grouprl.config.learner import UpdateConfig
from grouprl.learner.optimizer import refuse_paged
from grouprl.types import UserError, import_extra

_CONSTANTS = {"qmap1", "qmap2"}  # the 256 values of a byte, the same for all weights


class LibraryAdamW:
    """bitsandbytes' AdamW, with a state that is saved and loaded weight by weight."""

    def __init__(self, groups: Iterable[dict[str, Any]], config: UpdateConfig, embeddings: Collection[Tensor]) -> None:
        """Each group has `params` and a `weight_decay`.

        Raises:
            UserError: bitsandbytes is missing, or cannot do this for the device or the dtype of the weights.
        """
        groups = list(groups)
        weights = [weight for group in groups for weight in group["params"]]
        setting = "learner.moments=8bit" if config.moments == "8bit" else "learner.paged=true"
        if any(weight.dtype != torch.float32 for weight in weights):
            dtypes = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
            raise UserError(
                f"{setting}: expected trained weights in float32, got {', '.join(dtypes)}, for which bitsandbytes "
                "rounds to the nearest number and loses small updates: set learner.moments=bfloat16 and "
                "learner.paged=false, or model.weights=float32, or train an adapter (model.lora={})"
            )
        for device in {weight.device.type for weight in weights}:
            refuse_paged(config, device)
        library = import_extra("bitsandbytes", "qlora", setting).optim
        bits = 8 if config.moments == "8bit" else 32
        make = {(8, False): library.AdamW8bit, (8, True): library.PagedAdamW8bit, (32, True): library.PagedAdamW32bit}
        self._adamw: Any = make[bits, config.paged](groups, lr=config.learning_rate, betas=config.betas)
        self._whole = set(weights) & set(embeddings)  # tensors are hashed by identity
        self._place = {
            weight: (group, weight, number, index)
            for number, group in enumerate(self._adamw.param_groups)
            for index, weight in enumerate(group["params"])
        }

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups, whose `lr` is that of the next step."""
        groups: list[dict[str, Any]] = self._adamw.param_groups
        return groups

    def step(self) -> None:
        """Updates every weight that has a gradient."""
        for weight in self._whole:
            if weight.grad is not None:
                self._begin(weight)
        self._adamw.step()

    def zero_grad(self, *, set_to_none: bool) -> None:
        """Clears the gradients."""
        self._adamw.zero_grad(set_to_none=set_to_none)

    def tensors(self, weight: Tensor) -> dict[str, Tensor]:
        """The state of a weight by name: step, state1, state2; absmax1, absmax2 with 8 bits. Empty before an update."""
        state: Mapping[str, Any] = self._adamw.state.get(weight, {})
        return {name: torch.as_tensor(value) for name, value in state.items() if name not in _CONSTANTS}

    def load(self, weight: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Loads what `tensors` returned, into the memory that the library chooses.

        Raises:
            UserError: the tensors are those of another optimizer.
        """
        self._begin(weight)
        state = self._adamw.state[weight]
        if state.keys() - _CONSTANTS != set(tensors):
            raise UserError(
                f"expected optimizer state of {', '.join(sorted(state.keys() - _CONSTANTS))}, got "
                f"{', '.join(sorted(tensors))}: resume with the learner.moments of the run"
            )
        for name, value in tensors.items():
            if isinstance(state[name], Tensor):
                state[name].copy_(value)
            else:
                state[name] = int(value)

    def _begin(self, weight: Tensor) -> None:
        """Makes the state of a weight that has none."""
        state = self._adamw.state[weight]
        if state:
            return
        if weight not in self._whole:
            self._adamw.init_state(*self._place[weight])
            return
        state["step"] = 0
        for name in ("state1", "state2"):
            state[name] = self._adamw.get_state_buffer(weight, dtype=torch.float32)
