"""The outputs of a mixture's routers: which experts each token chooses, and by which logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.types import UserError


@dataclass(frozen=True)
class Routing:
    """The output of a layer's router for S tokens."""

    logits_SE: Tensor
    experts_SK: Tensor  # indices of the K experts that each token chose

    def take(self, index: Tensor) -> Routing:
        """The routing of these tokens."""
        return Routing(self.logits_SE.index_select(0, index), self.experts_SK.index_select(0, index))


# Of the thread's forward pass: packs run side by side on threads, through the same modules.
_NOTED: ContextVar[list[Routing] | None] = ContextVar("noted", default=None)


def watch_routers(model: PreTrainedModel) -> None:
    """Makes forward passes inside `noted_routing` note what the routers give.

    Raises:
        UserError: the model has no routers, or none of the usual form.
    """
    modules = routers(model)
    if not modules:
        raise UserError(
            "algorithm.router_aux_coef: expected a model with experts whose routers give logits and choices, got "
            f"{type(model).__name__}: leave it at 0"
        )
    for router in modules:
        router.register_forward_hook(_note)


def routers(model: PreTrainedModel) -> list[nn.Module]:
    """The routers, as each family tells transformers; index 0 = (logits, weights, experts), the form of nearly all."""
    parts: list[Any] = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    recorders = [(getattr(part, "_can_record_outputs", None) or {}).get("router_logits") for part in parts]
    classes = tuple({recorder.target_class for recorder in recorders if recorder is not None and recorder.index == 0})
    return [module for module in model.get_decoder().modules() if isinstance(module, classes)]


def _note(_router: nn.Module, _inputs: object, output: tuple[Tensor, Tensor, Tensor]) -> None:
    noted = _NOTED.get()
    if noted is not None:
        noted.append(Routing(output[0], output[2]))


@contextmanager
def noted_routing() -> Iterator[list[Routing]]:
    """Gives a list to which forward passes of this thread add a `Routing` for each layer with experts."""
    noted: list[Routing] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


@contextmanager
def noted_in_order(index: Tensor) -> Iterator[None]:
    """Picks tokens of what the forward pass inside notes: it reads them in another order, or with padding."""
    noted = _NOTED.get()
    first = len(noted or ())
    yield
    if noted is not None:
        noted[first:] = [routing.take(index) for routing in noted[first:]]
