"""PPO's critic: the value loss, on a trunk of its own or as a term of the policy's loss."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.algorithms import token_weights, value_loss
from grouprl.algorithms.values import CriticPart, SharedCritic
from grouprl.forward.precision import autocast
from grouprl.forward.products import padded_call
from grouprl.learner.batch import UpdateInputs
from grouprl.learner.gradients import step_if_finite
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.packs import Pack, PackOutput, Stats, combined, cut, pack_hidden, read_metrics, to_grid
from grouprl.learner.runner import PackRunner
from grouprl.learner.terms import PackLoss, PackPass, Term
from grouprl.types import Batch


class Critic(nn.Module):
    """A linear value head on the hidden states of its own trunk, or of the policy's.

    The head starts at 0, so an untrained critic predicts 0 and adds no noise to the advantages.
    """

    def __init__(self, policy: PreTrainedModel, *, shared: bool) -> None:
        """Copies the policy's current decoder, without an output embedding, as the trunk unless `shared`."""
        super().__init__()
        embedding = policy.get_input_embeddings().weight
        # The frozen weights beside an adapter are shared with the policy: deepcopy skips what its memo holds.
        frozen = {id(weight): weight for weight in policy.parameters() if not weight.requires_grad}
        self.trunk: PreTrainedModel | None = None if shared else copy.deepcopy(policy.get_decoder(), frozen)
        dtype = torch.promote_types(embedding.dtype, torch.float32)  # a bfloat16 weight near 0.01 has steps of 1e-4
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=embedding.device, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.eval()

    def values(self, hidden_CH: Tensor) -> Tensor:
        """[C] values, float32, from the hidden states [C, H] that predict the tokens."""
        # Rounded to bfloat16, a value near 64 is off by more than PPO's value clip.
        with torch.autocast(hidden_CH.device.type, enabled=False):
            return padded_call(self.head, hidden_CH.to(self.head.weight.dtype))[:, 0].float()


def make_critic(policy: PreTrainedModel, part: CriticPart) -> Critic:
    """The critic of an algorithm, before its first update."""
    return Critic(policy, shared=isinstance(part, SharedCritic))


@dataclass(frozen=True)
class CriticTargets:
    """What a critic learns from some rows of a batch: [N, T] tensors."""

    values_NT: Tensor  # before the first update
    returns_NT: Tensor
    counted_NT: Tensor  # bool, tokens of the value loss; false in the other rows

    @staticmethod
    def of(inputs: UpdateInputs, rows: Sequence[int]) -> CriticTargets | None:
        """None where the credit has no returns for a critic."""
        values_NT, credit = inputs.before.values_NT, inputs.credit
        if values_NT is None or credit.returns_NT is None or credit.counted_NT is None:
            return None
        counted_NT = torch.zeros_like(credit.counted_NT)
        counted_NT[list(rows)] = credit.counted_NT[list(rows)]
        return CriticTargets(values_NT, credit.returns_NT, counted_NT)

    @property
    def moving(self) -> list[int]:
        """The rows that the value loss moves."""
        return [row for row, moves in enumerate(self.counted_NT.any(1).tolist()) if moves]

    @cached_property
    def weights_NT(self) -> Tensor:
        """Weights of the value loss, which is a mean over the counted tokens."""
        return token_weights(self.counted_NT, aggregate="token_mean")

    @property
    def explained_variance(self) -> float:
        """1 - Var(returns - values) / Var(returns) of the counted tokens: 1 for a perfect critic, 0 for a constant."""
        returns = self.returns_NT.cpu()[self.counted_NT].double()
        values = self.values_NT.cpu()[self.counted_NT].double()
        variance = float(returns.var(correction=0)) if len(returns) else 0.0
        return 1 - float((returns - values).var(correction=0)) / variance if variance > 0 else float("nan")


@dataclass(frozen=True)
class CriticLearner:
    """A critic and its optimizer; with a trunk of its own it learns from packs of its own, else as a `CriticTerm`."""

    critic: Critic
    optimizer: Optimizer
    part: CriticPart  # the algorithm's options

    def evaluate(self, runner: PackRunner, batch: Batch) -> dict[str, Tensor]:
        """[N, T] values before the first update; none where they are columns of the policy's forward pass."""
        trunk = self.critic.trunk
        if trunk is None:
            return {}
        return runner.columns(trunk, batch, lambda pack: {"values_NT": self.critic.values(pack_hidden(trunk, pack))})

    def metrics(self, inputs: UpdateInputs) -> dict[str, float]:
        """How well the critic predicts a batch before its first update."""
        targets = CriticTargets.of(inputs, range(len(inputs.batch.mask_NT)))
        return {} if targets is None else {"value_explained_variance": targets.explained_variance}

    def loss(self, targets: CriticTargets, pack: Pack, hidden_CH: Tensor) -> tuple[Tensor, Stats]:
        """The value loss of a pack from the hidden states [C, H] that predict its tokens, and its metrics."""
        cost, stats = value_loss(
            to_grid(pack, self.critic.values(hidden_CH)),
            cut(pack, targets.values_NT),
            cut(pack, targets.returns_NT),
            cut(pack, targets.weights_NT),
            clip=self.part.value_clip,
        )
        return cost, {name: (value, len(pack.row_C)) for name, value in {**stats, "value_loss": cost}.items()}

    def add_gradients(self, runner: PackRunner, inputs: UpdateInputs, rows: Sequence[int]) -> dict[str, float]:
        """Adds the gradients of the critic's own packs, and returns their metrics; a term has none."""
        trunk, targets = self.critic.trunk, CriticTargets.of(inputs, rows)
        if trunk is None or targets is None or not targets.moving:
            return {}
        packs, prefix = runner.learned_packs(trunk, inputs.batch, targets.moving)

        def pack_loss(pack: Pack) -> tuple[Tensor, Stats]:
            with autocast(runner.device, runner.dtype):
                hidden_CH = pack_hidden(trunk, pack)
            cost, stats = self.loss(targets, pack, hidden_CH)
            return cost, {name: (value.detach(), count) for name, (value, count) in stats.items()}

        results = runner.add_gradients([partial(pack_loss, pack) for pack in packs], packs, [self.critic], prefix)
        metrics_by_pack = zip(results, read_metrics(list(results.values())), strict=True)
        return combined(list(runner.ranks.merged(metrics_by_pack, "metrics")))

    def step(self, inputs: UpdateInputs, rows: Sequence[int], loss: float) -> float:
        """Makes the critic's update where the loss is finite; returns the gradient's norm, 0 without one."""
        targets = CriticTargets.of(inputs, rows)
        return 0.0 if targets is None or not targets.moving else step_if_finite(self.optimizer, loss)


@dataclass(frozen=True)
class CriticTerm(Term):
    """The value loss of a critic on the policy's own trunk."""

    learner: CriticLearner
    reads_policy_before = True

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The critic, whose head takes the gradient too."""
        return (self.learner.critic,)

    def columns(self, output: PackOutput) -> dict[str, Tensor]:
        """The values before each token."""
        return {"values_NT": self.learner.critic.values(output.hidden_CH)}

    def moves(self, inputs: UpdateInputs, rows: Sequence[int], weights_NT: Tensor) -> Tensor:
        """The rows with a token in the value loss."""
        targets = CriticTargets.of(inputs, rows)
        return super().moves(inputs, rows, weights_NT) if targets is None else targets.counted_NT.any(1)

    def prepare(
        self, runner: PackRunner, inputs: UpdateInputs, packs: Sequence[Pack], rows: Sequence[int], weights_NT: Tensor
    ) -> PackLoss:
        """The targets of an update, and with them the value loss of a pack from the policy's hidden states."""
        part, targets = self.learner.part, CriticTargets.of(inputs, rows)
        coef = part.value_coef if isinstance(part, SharedCritic) else 1.0

        def pack_loss(forward: PackPass) -> tuple[Tensor, Stats]:
            if targets is None:
                return forward.tokens.weights_NT.new_zeros(()), {}
            cost, stats = self.learner.loss(targets, forward.pack, forward.output.hidden_CH)
            return coef * cost, stats

        return pack_loss
