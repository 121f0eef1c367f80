"""One weight update from one batch: reference log-probs, policy log-probs, loss, gradient, step."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithm import Algorithm
from grouprl.algorithms import policy_loss
from grouprl.learner.forward import pack_logprobs
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.packs import Pack, make_packs, targets
from grouprl.models.precision import autocast
from grouprl.types import Batch


@dataclass(frozen=True)
class Learner:
    """What an update needs besides the batch."""

    policy: PreTrainedModel
    reference: PreTrainedModel | None  # None when kl_coef is 0
    optimizer: Optimizer
    algorithm: Algorithm
    device: torch.device
    dtype: str
    micro_batch_tokens: int

    def learn(self, batch: Batch) -> dict[str, float]:
        """`algorithm.passes` updates on one batch.

        Returns:
            Figures of the last pass, `sampler_learner_gap` of the first, and the seconds spent.
        """
        rows = self._rows(batch)
        packs = make_packs(batch, rows, self.micro_batch_tokens, self.device)
        started = time.perf_counter()
        reference_NT = self._reference_logprobs(batch, packs)
        reference_seconds = time.perf_counter() - started
        passes = [self._update(batch, packs, reference_NT) for _ in range(self.algorithm.passes)]
        return {
            **passes[-1],
            "sampler_learner_gap": passes[0].get("sampler_learner_gap", math.nan),
            "time/reference": reference_seconds,
            "time/learn": time.perf_counter() - started - reference_seconds,
        }

    def _rows(self, batch: Batch) -> list[int]:
        """Completions that move the weights: without a KL term those of advantage 0 have no gradient."""
        if self.algorithm.kl_coef > 0:
            return list(range(len(batch.group_of_N)))
        return batch.advantages_N.nonzero()[:, 0].tolist()

    @torch.no_grad()
    def _reference_logprobs(self, batch: Batch, packs: Sequence[Pack]) -> list[Tensor] | None:
        if self.reference is None:
            return None
        with autocast(self.device, self.dtype):
            return [
                _to_grid(pack, pack_logprobs(self.reference, pack, targets(batch, pack), batch.sampling)[0])
                for pack in packs
            ]

    def _update(self, batch: Batch, packs: Sequence[Pack], references: list[Tensor] | None) -> dict[str, float]:
        learning_rate = self.optimizer.learning_rate
        figures = [
            self._backward(batch, pack, references[index] if references else None) for index, pack in enumerate(packs)
        ]
        # Every completion may lack signal; then there is no gradient, and no step that decays or drifts.
        norm = self.optimizer.step() if packs else 0.0
        return {**_combined(figures), "grad_norm": norm, "learning_rate": learning_rate}

    def _backward(self, batch: Batch, pack: Pack, reference_nT: Tensor | None) -> dict[str, float]:
        algorithm = self.algorithm
        with autocast(self.device, self.dtype):
            logprobs_C, entropies_C = pack_logprobs(self.policy, pack, targets(batch, pack), batch.sampling)
        logprobs_nT = _to_grid(pack, logprobs_C)
        rows, width = list(pack.rows), pack.width
        old_nT = batch.old_logprobs_NT[rows, :width].to(self.device)
        mask_nT = batch.mask_NT[rows, :width].to(self.device)
        loss, stats = policy_loss(
            logprobs_nT,
            old_nT,
            batch.advantages_N[rows].to(self.device),
            batch.weights_NT[rows, :width].to(self.device),
            surrogate=algorithm.surrogate,
            ratio=algorithm.ratio,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            ref_logprobs_NT=reference_nT,
            kl_coef=algorithm.kl_coef,
            kl=algorithm.kl,
            mask_NT=mask_nT,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        gap = (logprobs_nT.detach() - old_nT).abs()[mask_nT].max()
        return {
            "loss": float(loss.detach()),
            "entropy": float(entropies_C.mean()),
            "sampler_learner_gap": float(gap),
            "tokens": float(len(pack.row_C)),
            **{name: float(value) for name, value in stats.items()},
        }


def _to_grid(pack: Pack, values_C: Tensor) -> Tensor:
    grid = values_C.new_zeros(len(pack.rows) * pack.width)
    return grid.index_copy(0, pack.row_C * pack.width + pack.column_C, values_C).view(len(pack.rows), pack.width)


def _combined(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    """Figures of the packs as those of the batch: the loss adds up, peaks are peaks, the rest averages over tokens."""
    tokens = sum(figure["tokens"] for figure in figures)
    combined: dict[str, float] = {}
    for name in figures[0] if figures else ():
        values = [figure[name] for figure in figures]
        if name == "loss":
            combined[name] = sum(values)
        elif name in ("sampler_learner_gap", "ratio_max"):
            combined[name] = max(values)
        elif name != "tokens":
            combined[name] = sum(v * f["tokens"] for v, f in zip(values, figures, strict=True)) / tokens
    return combined
