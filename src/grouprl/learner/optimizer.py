"""AdamW with a scheduled learning rate and gradient clipping; its state is plain tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from grouprl.config.learner import UpdateConfig
from grouprl.forward.devices import traits_of
from grouprl.forward.workers import one_thread, worker_count
from grouprl.learner.rounded_adamw import RoundedAdamW
from grouprl.leaves import leaf
from grouprl.models.save import plain
from grouprl.models.shard import part_like, whole
from grouprl.types import UserError


@runtime_checkable
class LeanAdamW(Protocol):
    """AdamW whose moments a library keeps in less memory, or elsewhere: see `grouprl.lean`."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups, whose `lr` is that of the next step."""
        ...

    def step(self) -> None:
        """Updates every weight that has a gradient."""
        ...

    def zero_grad(self, *, set_to_none: bool) -> None:
        """Clears the gradients."""
        ...

    def tensors(self, weight: Tensor) -> dict[str, Tensor]:
        """The state of a weight by name; empty before an update."""
        ...

    def load(self, weight: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Loads what `tensors` returned."""
        ...


class Optimizer:
    """Updates a model's weights from accumulated gradients."""

    def __init__(
        self,
        model: nn.Module,
        config: UpdateConfig,
        *,
        total_updates: int | None = None,
        rate_name: str = "learner.learning_rate",
        seed: int = 0,
    ) -> None:
        """`total_updates` are those of the whole run, which `learner.schedule` may follow.

        `rate_name` is the name of the learning rate's setting, for error messages. `seed` is of the rounding of
        bfloat16 weights.
        """
        self._rate_name = rate_name
        self._named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._config = config
        self._total = total_updates
        self._small = worker_count(model, 1) > 0
        # fused: 3 ms against 20 ms an update for a few million weights on a CPU core.
        # Norms and biases keep their scale, as in transformers' Trainer and so in TRL; embeddings decay in both.
        matrices = [weight for weight in self._named.values() if weight.ndim > 1]
        vectors = [weight for weight in self._named.values() if weight.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        rate, betas = config.learning_rate, config.betas
        self._adamw: torch.optim.AdamW | RoundedAdamW | LeanAdamW
        if config.moments == "8bit" or config.paged:
            embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
            self._adamw = leaf("moments")(groups, config, embeddings)
        elif config.moments == "bfloat16" or any(weight.dtype == torch.bfloat16 for weight in self._named.values()):
            names: dict[Tensor, str] = {weight: name for name, weight in self._named.items()}
            self._adamw = RoundedAdamW(groups, rate, betas, names, seed, getattr(torch, config.moments))
        else:
            self._adamw = torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True)
        self.updates = 0
        self.turn = 0  # updates that were due before the next one, those without a gradient too

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return scheduled_rate(self._config, self.turn, self._total)

    def step(self) -> float:
        """Clips the gradient, updates the weights, clears the gradient.

        A gradient of exactly 0 is no update: neither momentum nor weight decay moves the weights.

        Returns:
            The gradient's norm before clipping.

        Raises:
            FloatingPointError: the norm is not finite; the weights are unchanged.
        """
        # A sum in parts, one for each thread, would round in another way for each number of threads.
        with one_thread() if self._small else nullcontext():
            if isinstance(self._adamw, RoundedAdamW):
                norm = self._adamw.clip(self._config.max_grad_norm)
            else:
                norm = float(whole(nn.utils.clip_grad_norm_(self._named.values(), self._config.max_grad_norm)))
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"expected a finite gradient in update {self.updates + 1}, got a norm of {norm}; "
                f"its weights are unchanged: lower {self._rate_name} or resume from an earlier checkpoint"
            )
        if norm > 0:
            for group in self._adamw.param_groups:
                group["lr"] = self.learning_rate
            self._adamw.step()
            self.updates += 1
        self.turn += 1
        self.discard()
        return norm

    def discard(self) -> None:
        """Clears the gradient without an update."""
        self._adamw.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Returns every tensor of the optimizer, named `<weight>/<moment>`, as a copy on the CPU."""
        return {name: value for name, part in self.moments().items() if (value := plain(part, keep=True)) is not None}

    def moments(self) -> dict[str, Tensor]:
        """The same tensors themselves, sharded ones as they are."""
        states = ((name, self._state(weight)) for name, weight in self._named.items())
        return {f"{name}/{moment}": value for name, state in states for moment, value in state.items()}

    def _state(self, weight: Tensor) -> Mapping[str, Tensor]:
        return self._adamw.tensors(weight) if isinstance(self._adamw, LeanAdamW) else self._adamw.state[weight]

    def load_state(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Loads tensors that `state` returned.

        Raises:
            UserError: the state belongs to other weights.
        """
        expected = set(self._named)
        moments: dict[str, list[str]] = {}
        for key in state:
            name, _, moment = key.rpartition("/")
            moments.setdefault(name, []).append(moment)
        got = set(moments)
        if got and got != expected:
            wrong = sorted(got ^ expected)
            raise UserError(f"expected optimizer state for the weights of this model, got a difference in {wrong[:3]}")
        for name in sorted(got):
            weight = self._named[name]
            tensors = {moment: state[f"{name}/{moment}"] for moment in moments[name]}
            if isinstance(self._adamw, LeanAdamW):
                self._adamw.load(weight, tensors)
            else:
                # Fused AdamW keeps the step count too on the weight's device.
                self._adamw.state[weight] = {
                    moment: part_like(value, weight).clone() for moment, value in tensors.items()
                }
        self.updates = self.turn = updates


def scheduled_rate(config: UpdateConfig, turn: int, total: int | None = None) -> float:
    """Computes the learning rate of an update.

    During the W updates of the warm-up it is learning_rate * (turn + 1) / W, so that the first update has an effect.
    After it, with x = (turn - W) / (total - W), it is learning_rate times
      constant: 1
      linear:   m + (1 - m) (1 - x)
      cosine:   m + (1 - m) (1 + cos(pi x)) / 2   (arXiv:1608.03983, equation 5, without restarts)
    where m is min_lr_ratio.

    `turn` counts the updates of the run before this one, those without a gradient too, `total` those of the whole run.

    Raises:
        ValueError: `total` is unknown and the rate depends on it.
    """
    if total is None and config.follows_the_end:
        raise ValueError(f"total: expected the number of updates with learner.schedule={config.schedule}, got None")
    warmup = float(config.warmup_steps)
    if 0 < warmup < 1:
        warmup = math.ceil(warmup * (total or 0))
    if turn < warmup:
        return config.learning_rate * (turn + 1) / warmup
    if total is None or config.schedule == "constant":
        return config.learning_rate
    left = 1 - min(1.0, (turn - warmup) / max(1.0, total - warmup))
    share = left if config.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * share)


def refuse_paged(config: UpdateConfig, device: str) -> None:
    """Raises UserError for paged moments on a device whose memory cannot move to the machine's."""
    if config.paged and not traits_of(device).has_paging:
        reason = ", whose memory the moments are in anyway" if device == "cpu" else ""
        on = "a CPU" if device == "cpu" else device
        raise UserError(f"learner.paged: expected false on {on}{reason}, got true: remove it")
