"""The compiled kernels for CPUs, where this installation has them: each computes what torch computes, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from grouprl.leaves import find_leaf

if TYPE_CHECKING:  # the planner and the page need the sizes of log-probs, and not transformers
    from transformers import PreTrainedModel


class Kernels(Protocol):
    """What the trunk asks of the kernels; each serves only where it is no slower than torch."""

    def reads(self, decoder: nn.Module) -> bool:
        """Whether `hidden_states` computes this decoder's forward pass here."""
        ...

    def hidden_states(self, decoder: nn.Module, input_ids_S: Tensor, position_ids_S: Tensor, layout: Any) -> Tensor:
        """Last hidden states [S, H] of packed tokens under a layout."""
        ...

    def has_logprobs(self, vocabulary: int, dtype: torch.dtype) -> bool:
        """Whether `logprobs` serves a head of this size."""
        ...

    def logprobs(
        self, head: nn.Linear, hidden_SH: Tensor, targets_S: Tensor, temperature: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        """Log-prob of each target and the entropy of its distribution, with `rows` of logits in memory at once."""
        ...

    def has_draw(self, vocabulary: int, dtype: torch.dtype) -> bool:
        """Whether `draw` and `append` serve logits of this size."""
        ...

    def draw(
        self, logits_NV: Tensor, keys_N: Tensor, positions_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draws as `grouprl.rollout.sampler.draw` does, of which it computes sampling without truncation."""
        ...

    def append(self, drawn: Sequence[Tensor], columns: Sequence[Tensor], ends: Tensor, reasons: Tensor) -> bool:
        """Writes drawn tokens into the columns of their rows; whether one of the rows ended."""
        ...

    def decodes(self, model: PreTrainedModel, dtype: torch.dtype) -> bool:
        """Whether `forwards` decodes sequences of this model."""
        ...

    def forwards(
        self, model: PreTrainedModel, dtype: torch.dtype, shape: Any, count: int, prefix: Callable[[Any], Any]
    ) -> list[Any]:
        """As many `grouprl.rollout.forward.Forward` of one model; `prefix` reads the tokens that all prompts share."""
        ...

    def why_slow(self) -> str | None:
        """The reason why there are no kernels although nobody switched them off; None = there are."""
        ...


def kernels() -> Kernels | None:
    """The kernels; None = torch computes."""
    return cast(Kernels | None, find_leaf("kernels"))
