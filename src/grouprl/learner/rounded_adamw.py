"""AdamW for weights and moments in bfloat16: each update is computed in float32 and rounded at random, up or down.

An update is often far below half a step of bfloat16. Rounded to the nearest number it would be lost every time; rounded
up with a probability equal to its part of the step it is kept in expectation, without float32 copies of the weights.
Libraries round so too (torchao's `bf16_stochastic_round`), but with draws that a resumed run would not repeat.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from grouprl.forward.devices import traits_of

_EPS = 1e-8


class RoundedAdamW(torch.optim.Optimizer):
    """AdamW with the state of torch's, whose draws depend on seed, weight and update alone.

    A resumed run draws the same, and so does one on another number of threads.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        rate: float,
        betas: tuple[float, float],
        names: Mapping[Tensor, str],
        seed: int,
        moments: torch.dtype,
    ) -> None:
        """Each group has `params` and a `weight_decay`; `names` are those of all weights."""
        super().__init__(groups, {"lr": rate, "betas": betas, "weight_decay": 0.0})
        self._names, self._seed, self._moments, self._scale = names, seed, moments, 1.0

    def clip(self, most: float) -> float:
        """The gradient's norm; the next step scales the gradient down to `most`, in float32."""
        gradients = [weight.grad for weight in self._names if weight.grad is not None]
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
        norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
        self._scale = min(1.0, most / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Updates every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)

    def _update(self, weight: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            state |= {name: torch.zeros_like(weight, dtype=self._moments) for name in ("exp_avg", "exp_avg_sq")}
        state["step"] += 1
        update, rate, (beta, beta_sq) = int(state["step"]), group["lr"], group["betas"]
        key = f"{self._seed}/{self._names[weight]}/{update}".encode()
        draw_seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 1  # 63 bits
        traits = traits_of(weight.device.type)
        generator = torch.Generator(weight.device if traits.has_generator else "cpu").manual_seed(draw_seed)
        tensors = [tensor.view(-1) for tensor in (state["exp_avg"], state["exp_avg_sq"], weight.data)]
        chunk = traits.update_numbers
        for at in range(0, weight.numel(), chunk):
            parts = [tensor[at : at + chunk] for tensor in tensors]
            mean, square, value = (part.float() for part in parts)
            gradient = weight.grad.flatten()[at : at + chunk].float() * self._scale  # type: ignore[union-attr]
            mean.lerp_(gradient, 1 - beta)
            square.mul_(beta_sq).addcmul_(gradient, gradient, value=1 - beta_sq)
            divisor = (square / (1 - beta_sq**update)).sqrt_().add_(_EPS)
            factor = -rate / (1 - beta**update)
            # torch refuses a finite factor beyond float32, and not infinity, whose weights end the run with a sentence.
            factor = factor if -factor <= torch.finfo(torch.float32).max else -math.inf
            value.mul_(1 - rate * group["weight_decay"]).addcdiv_(mean, divisor, value=factor)
            for part, exact in zip(parts, (mean, square, value), strict=True):
                if part.dtype == torch.bfloat16:
                    part.copy_(rounded(exact, generator))


def rounded(exact: Tensor, generator: torch.Generator) -> Tensor:
    """Rounds float32 to bfloat16, away from 0 with a probability equal to the part of the step that is cut off.

    The expectation is the exact value; numbers of bfloat16 stay. Of a float32 number bfloat16 has the upper 16 bits.
    """
    draws = torch.randint(0, 1 << 16, exact.shape, generator=generator, device=generator.device, dtype=torch.int32)
    return (exact.view(torch.int32) + draws.to(exact.device)).bitwise_and_(-(1 << 16)).view(torch.float32).bfloat16()
