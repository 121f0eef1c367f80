"""Distillation: the KL to a teacher that has read more or knows more, its gradient, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from grouprl.algorithms.option import Part, option

_TEMPLATE = "A worked solution of the problem below:\n{solution}\n\n{prompt}"


class _ReverseKl(torch.autograd.Function):
    """Keeps the gradient, which the forward pass has anyway: one array of the logits' size instead of four."""

    @staticmethod
    def forward(ctx: Any, logits_CV: Tensor, teacher_CV: Tensor) -> Tensor:
        logprobs_CV = logits_CV.log_softmax(-1)
        gaps_CV = logprobs_CV - teacher_CV
        probs_CV = logprobs_CV.exp_()
        kl_C = (probs_CV * gaps_CV).sum(-1)
        ctx.save_for_backward(gaps_CV.sub_(kl_C[:, None]).mul_(probs_CV))
        return kl_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_C: Tensor) -> tuple[Tensor, None]:
        (slope_CV,) = ctx.saved_tensors
        return slope_CV * gradient_C[:, None], None


def reverse_kl(logits_CV: Tensor, teacher_logprobs_CV: Tensor) -> Tensor:
    """KL(policy || teacher) of C tokens over the whole vocabulary, in nats.

    With p the policy and q the teacher, which takes no gradient, the derivative by the logit of token v is
    p_v * (log p_v / q_v - KL). Read as a policy gradient, log q_v / p_v is the reward of token v and -KL its exact
    baseline (vOPD, arXiv:2605.07865); the sum over all v in the place of the sampled token has no variance. SDPO
    (arXiv:2601.20802) and SDPG (arXiv:2606.04036) have the same direction.

    Args:
        logits_CV: [C, V] of the policy.
        teacher_logprobs_CV: [C, V] log-probs of the teacher.

    Returns:
        [C], at least 0, differentiable in the logits alone, once.
    """
    kl_C: Tensor = _ReverseKl.apply(logits_CV, teacher_logprobs_CV.detach())  # type: ignore[no-untyped-call]
    return kl_C


@dataclass(frozen=True)
class Distill(Part):
    """Distillation of a teacher into the policy; an algorithm with distill=None has none."""

    absent: ClassVar[Mapping[str, Any]] = {"distill_coef": 0.0}

    distill_coef: float = option(0.1, "weight of the KL to a teacher; 0 = no teacher", low=1e-9)
    distill_teacher: str = option(
        "policy", "the model that teaches: the policy as it is before each update, the reference, or a model's path"
    )
    distill_reads: Literal["auto", "solution", "prompt"] = option(
        "auto",
        "what the teacher reads: the task's solution before the prompt, or the prompt alone (auto with a model's path; "
        "else auto is the solution)",
    )
    distill_where: Literal["no_signal", "all"] = option(
        "no_signal", "groups that the teacher teaches: those without signal that are not solved, or all"
    )

    @property
    def path(self) -> str | None:
        """The teacher that is neither the policy nor the reference."""
        return None if self.distill_teacher in ("policy", "reference") else self.distill_teacher

    @property
    def reads(self) -> Literal["solution", "prompt"]:
        """What the teacher reads."""
        if self.distill_reads == "auto":
            return "prompt" if self.path else "solution"
        return self.distill_reads

    def prompt(self, prompt: str, solution: str) -> str:
        """The prompt of a teacher that reads the solution.

        >>> Distill().prompt("2 + 2?", "4, not {prompt}.")
        'A worked solution of the problem below:\\n4, not {prompt}.\\n\\n2 + 2?'
        """
        return _TEMPLATE.format(solution=solution, prompt=prompt)
