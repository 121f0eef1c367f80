"""The loss of an update is a list of terms: here the policy's (surrogate and KL) and the entropy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Protocol

import torch
from torch import Tensor, nn

from grouprl.algorithms.advantages import check_tensor
from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.spec import Algorithm
from grouprl.forward.experts import Routing
from grouprl.learner.batch import UpdateInputs
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.packs import Pack, PackOutput, Stats, cut, to_grid
from grouprl.learner.runner import PackRunner
from grouprl.types import Batch, Group, Problem, RewardOutcome, UserError


@dataclass(frozen=True)
class PackPass:
    """A pack's forward pass with gradient, and the update's tensors cut to its n completions of up to T tokens."""

    pack: Pack
    output: PackOutput  # log-probs, entropies and hidden states of its C completion tokens
    routing: Sequence[Routing]  # of each layer with experts, where a term watches them
    tokens: TokenGrid  # [n, T] tensors that the policy's loss reads
    is_counted_n: list[bool]  # whether metrics describe the completion: the policy's term moves it

    @staticmethod
    def of(
        inputs: UpdateInputs, pack: Pack, output: PackOutput, routing: Sequence[Routing], weights_NT: Tensor
    ) -> PackPass:
        """Cuts the update's tensors to the rows of a pack."""
        denominator_NT, reference_NT = inputs.ratio_denominator_NT, inputs.before.reference_NT
        logprobs_nT = to_grid(pack, output.logprobs_C)
        sampler_logprobs_nT = cut(pack, inputs.batch.old_logprobs_NT)
        mask_nT, weights_nT = cut(pack, inputs.batch.mask_NT), cut(pack, weights_NT)
        advantages_nT = cut(pack, inputs.advantages_NT)
        rows = list(pack.rows)  # on the CPU
        has_gradient_n = (weights_NT[rows] > 0).any(1) & (inputs.advantages_NT[rows] != 0).any(1)
        tokens = TokenGrid(
            logprobs_nT,
            logprobs_nT.detach() if denominator_NT is None else cut(pack, denominator_NT),
            advantages_nT,
            weights_nT,
            mask_nT,
            sampler_logprobs_NT=sampler_logprobs_nT,
            reference_NT=None if reference_NT is None else cut(pack, reference_NT),
            counted_NT=mask_nT & has_gradient_n[:, None].to(mask_nT.device),
            rows=pack.rows,
        )
        return PackPass(pack, output, routing, tokens, has_gradient_n.tolist())

    @property
    def counted(self) -> int:
        """The number of tokens that metrics describe."""
        return sum(compress(self.pack.lengths, self.is_counted_n))

    def counted_of(self, values_C: Tensor) -> Tensor:
        """Those of some values that belong to counted tokens."""
        if all(self.is_counted_n):
            return values_C
        is_counted_C = torch.tensor(self.is_counted_n).repeat_interleave(torch.tensor(self.pack.lengths))
        return values_C[is_counted_C.nonzero()[:, 0].to(values_C.device)]


PackLoss = Callable[[PackPass], tuple[Tensor, Stats]]
"""A term's part in the loss of a pack, times its coefficient, and its metrics."""


class Term:
    """A term of the loss: what it needs before the update, the rows that it moves, and its loss of a pack.

    The learner calls `with_inputs`, `columns` and `metrics` once for a batch, `moves` and `prepare` once for an update,
    and the function that `prepare` returns once for a pack. The defaults need nothing and move no row.
    """

    reads_policy_before = False  # whether `columns` needs the policy's forward pass before the first update
    reads_prefix_once = True  # whether packs may read the tokens that begin all prompts outside of the packs

    @property
    def networks(self) -> Sequence[nn.Module]:
        """Networks with weights of the term's own, which take the gradient too."""
        return ()

    def check(self, problem: Problem) -> None:
        """Raises UserError for a train problem that the term cannot use; called before the run starts."""

    def with_inputs(self, batch: Batch, groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]]) -> Batch:
        """The batch of these groups, whose outcomes are [P][G], with what the term reads of it."""
        return batch

    def columns(self, output: PackOutput) -> dict[str, Tensor]:
        """[C] columns of `PolicyEvaluation` from the policy's forward pass before the first update."""
        return {}

    def metrics(self, inputs: UpdateInputs) -> dict[str, float]:
        """Metrics of a batch before its first update."""
        return {}

    def moves(self, inputs: UpdateInputs, rows: Sequence[int], weights_NT: Tensor) -> Tensor:
        """[N] bool: those of an update's rows to which the term gives a gradient."""
        return torch.zeros(len(weights_NT), dtype=torch.bool)

    def prepare(
        self, runner: PackRunner, inputs: UpdateInputs, packs: Sequence[Pack], rows: Sequence[int], weights_NT: Tensor
    ) -> PackLoss:
        """Computes what all packs of an update share, and returns the term's loss of a pack.

        Args:
            runner: makes further forward passes and packs.
            inputs: the batch, and what its updates share.
            packs: the packs of the update.
            rows: the update's rows of the batch.
            weights_NT: weight of each token in the loss, 0 outside of these rows.
        """
        raise NotImplementedError


class CriticBeside(Protocol):
    """A critic, its optimizer, and what it learns beside the policy, with packs of its own or as a term."""

    critic: nn.Module
    optimizer: Optimizer

    def evaluate(self, runner: PackRunner, batch: Batch) -> dict[str, Tensor]:
        """[N, T] values before the first update; none where they are columns of the policy's forward pass."""
        ...

    def metrics(self, inputs: UpdateInputs) -> dict[str, float]:
        """Metrics of a batch before its first update."""
        ...

    def add_gradients(self, runner: PackRunner, inputs: UpdateInputs, rows: Sequence[int]) -> dict[str, float]:
        """Adds the gradients of the critic's own packs, and returns their metrics; a term has none."""
        ...

    def step(self, inputs: UpdateInputs, rows: Sequence[int], loss: float) -> float:
        """Makes the critic's update where the loss is finite; returns the gradient's norm."""
        ...


@dataclass(frozen=True)
class PolicyTerm(Term):
    """Equation 3 of arXiv:2402.03300 as a loss: sum of weight * (-min(ratio * A, clip(ratio) * A) + kl_coef * KL).

    The ratio is exp(log-prob - old log-prob); `grouprl.algorithms.surrogates` has the other surrogates.
    """

    algorithm: Algorithm

    def moves(self, inputs: UpdateInputs, rows: Sequence[int], weights_NT: Tensor) -> Tensor:
        """An advantage of 0 gives no gradient without a KL in the loss, which is 0 at the reference, or a drift."""
        has_kl, has_drift = self.algorithm.has_kl_loss, self.algorithm.objective.drift_coef > 0
        is_pulled = (has_kl and not inputs.before.at_reference) or ((has_kl or has_drift) and inputs.has_signal)
        return (weights_NT > 0).any(1) & (is_pulled | (inputs.advantages_NT != 0).any(1))

    def loss(self, tokens: TokenGrid, kl_coef: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of some tokens and its metrics, by the algorithm's objective; a user may have written its class."""
        result = self.algorithm.objective.loss(
            tokens, self.algorithm.kl, kl_coef if self.algorithm.has_kl_loss else 0.0
        )
        if not isinstance(result, tuple):
            raise UserError(f"loss: expected (loss, stats), got {type(result).__name__}: return both")
        return check_tensor("loss", result[0], ()), result[1]

    def prepare(
        self, runner: PackRunner, inputs: UpdateInputs, packs: Sequence[Pack], rows: Sequence[int], weights_NT: Tensor
    ) -> PackLoss:
        """The loss of a pack needs nothing but its tokens."""

        def pack_loss(forward: PackPass) -> tuple[Tensor, Stats]:
            loss, values = self.loss(forward.tokens, inputs.kl_coef)
            counted = forward.counted
            stats = {name: (value, counted) for name, value in values.items()}
            if self.algorithm.has_kl_loss and "kl" in stats:  # the term is over all tokens
                stats["kl"] = values["kl"], sum(forward.pack.lengths)
            return loss, stats

        return pack_loss


@dataclass(frozen=True)
class EntropyTerm(Term):
    """The entropy of the policy's distributions, which the loss raises while a step has a bonus."""

    def moves(self, inputs: UpdateInputs, rows: Sequence[int], weights_NT: Tensor) -> Tensor:
        """Every row, while there is a bonus."""
        return (weights_NT > 0).any(1) & (inputs.entropy_bonus > 0)

    def prepare(
        self, runner: PackRunner, inputs: UpdateInputs, packs: Sequence[Pack], rows: Sequence[int], weights_NT: Tensor
    ) -> PackLoss:
        """The entropy bonus of a pack, and the mean entropy of its counted tokens, in nats."""

        def pack_loss(forward: PackPass) -> tuple[Tensor, Stats]:
            entropies_C = forward.output.entropies_C
            stats = {"entropy": (forward.counted_of(entropies_C.detach()).mean(), forward.counted)}
            entropies_nT = to_grid(forward.pack, entropies_C)
            weighted = (forward.tokens.weights_NT * entropies_nT).sum()
            return -inputs.entropy_bonus * weighted if inputs.entropy_bonus > 0 else weighted.new_zeros(()), stats

        return pack_loss
