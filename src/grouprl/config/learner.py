"""The optimizer of an update: learning rate and its schedule, moments, clipping, memory."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grouprl.config.section import Fraction, Section
from grouprl.types import UserError


class UpdateConfig(Section):
    """The optimizer (AdamW) and the memory of an update."""

    learning_rate: float = Field(1e-6, ge=0.0, description="learning rate after the warm-up")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="course of the learning rate after the warm-up, up to the last update of the run"
    )
    min_lr_ratio: float = Field(0.0, ge=0.0, le=1.0, description="with linear and cosine: last rate / learning_rate")
    warmup_steps: int | float = Field(
        0,
        ge=0,
        le=10**9,
        description="updates over which the learning rate rises from 0; below 1 = share of the run's updates",
    )
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), strict=False, description="decay of AdamW's two moments")
    moments: Literal["float32", "bfloat16", "8bit"] = Field(
        "float32",
        description="AdamW's moments; bfloat16 = stochastic rounding; 8bit needs bitsandbytes and float32 weights",
    )
    paged: bool = Field(False, description="move moments to the CPU's memory when the GPU's is full (bitsandbytes)")
    weight_decay: float = Field(0.0, ge=0.0, description="decoupled weight decay, times the learning rate")
    max_grad_norm: float = Field(
        1.0, gt=0.0, description="largest norm of the gradient; a larger gradient is scaled down"
    )
    micro_batch_tokens: int = Field(
        0,
        ge=0,
        le=10**9,
        description="packed tokens in one backward pass; changes memory, not results; 0 = by device and groups",
    )
    recompute: bool | None = Field(
        None, description="recompute layers in the backward pass: less memory, more time; null = on a GPU"
    )

    @property
    def follows_the_end(self) -> bool:
        """Whether the learning rate depends on the number of updates of the whole run."""
        return self.schedule != "constant" or 0 < self.warmup_steps < 1

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        if self.warmup_steps > 1 and self.warmup_steps % 1:
            raise UserError(
                f"learner.warmup_steps: expected a whole number of updates, or a share below 1 of the run's, got "
                f"{self.warmup_steps}: give one of them"
            )
        if self.schedule == "constant" and self.min_lr_ratio:
            raise UserError(
                f"learner.min_lr_ratio: expected 0 with learner.schedule=constant, got {self.min_lr_ratio}: set "
                "learner.schedule to linear or cosine, or remove it"
            )
        if self.paged and self.moments == "bfloat16":
            raise UserError(
                "learner.paged: expected false with learner.moments=bfloat16, got true: bitsandbytes pages moments in "
                "float32 or 8bit: set one of these, or remove it"
            )
        return self


class LearnerConfig(UpdateConfig):
    """The learner of reinforcement learning, which may have a critic."""

    critic_learning_rate: float | None = Field(
        None, ge=0.0, description="learning rate of the critic; null = learning_rate"
    )
