"""Updates the policy on one batch: log-probs, the terms of the loss, gradient, optimizer step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms.advantages import Credit, check_tensor
from grouprl.algorithms.spec import Algorithm
from grouprl.forward.attention import is_packed
from grouprl.forward.experts import noted_routing
from grouprl.forward.precision import autocast
from grouprl.learner.batch import AT_REFERENCE, PolicyEvaluation, UpdateInputs
from grouprl.learner.gradients import step_if_finite
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.packs import Pack, Stats, averaged, combined, minibatches, pack_forward, read_metrics
from grouprl.learner.runner import PackRunner
from grouprl.learner.terms import CriticBeside, EntropyTerm, PackLoss, PackPass, PolicyTerm, Term
from grouprl.learner.trace import BatchUpdates, TokenPass, UpdatePass, all_passes, watched_group
from grouprl.models.adapters import as_reference
from grouprl.models.load import mix_weights
from grouprl.models.shard import reshard
from grouprl.ranks import Ranks
from grouprl.types import Batch


@dataclass
class Learner:
    """The networks, their optimizers and the terms of the loss. A run keeps the same objects; weights and coefficients
    change.
    """

    policy: PreTrainedModel
    reference: PreTrainedModel | None  # None when kl_coef is 0; the policy itself = the policy without its adapter
    optimizer: Optimizer
    algorithm: Algorithm
    device: torch.device
    dtype: str
    micro_batch_tokens: int
    critic: CriticBeside | None = None
    ranks: Ranks = field(default_factory=Ranks)  # the processes that compute every batch together
    further_terms: Sequence[Term] = ()  # beside the policy's and the entropy's
    kl_coef: float = field(init=False)  # of this step; 0 without a reference
    entropy_coefs: tuple[float, float] = field(init=False)  # as steered, and of this step's bonus

    def __post_init__(self) -> None:
        self.kl_coef = self.algorithm.kl_coef
        self.entropy_coefs = (self.algorithm.entropy_options.entropy_coef,) * 2
        self.use_terms(self.further_terms)

    def use_terms(self, further: Sequence[Term]) -> None:
        """Makes the loss of the algorithm's policy term, the entropy's and these."""
        self.terms: tuple[Term, ...] = (PolicyTerm(self.algorithm), EntropyTerm(), *further)

    @property
    def runner(self) -> PackRunner:
        """Runs networks over packs, by the learner's settings of now."""
        is_local = is_packed(self.policy) and self.ranks.mesh is None
        once = is_local and all(term.reads_prefix_once for term in self.terms)
        return PackRunner(self.policy, self.device, self.dtype, self.micro_batch_tokens, self.ranks, once)

    def evaluate(self, batch: Batch) -> PolicyEvaluation:
        """Makes one forward pass of every network that the algorithm needs before the first update on a batch."""
        a, kl = self.algorithm, self.algorithm.kl
        needs_policy_logprobs = a.correction is not None or a.entropy_options.entropy_share < 1
        # In float32 log-probs agree with those of a sampler of this process to 1e-5.
        if self.dtype != "float32" or not batch.sampling.sampled_in_process:
            needs_policy_logprobs |= a.updates.count > 1 or (kl is not None and kl.kl_in == "reward")
        needs_policy_logprobs |= kl is not None and batch.sampling.is_stale
        columns: dict[str, Tensor] = {}
        if self.reference is not None:
            with as_reference(self.reference, self.policy) as frozen:

                def reference_columns(pack: Pack) -> dict[str, Tensor]:
                    return {"reference_NT": pack_forward(frozen, pack, batch.sampling).logprobs_C}

                columns |= self.runner.columns(frozen, batch, reference_columns)

        def policy_columns(pack: Pack) -> dict[str, Tensor]:
            output, pack_columns = pack_forward(self.policy, pack, batch.sampling), dict[str, Tensor]()
            if needs_policy_logprobs:
                pack_columns = {"policy_NT": output.logprobs_C, "entropies_NT": output.entropies_C}
            for term in self.terms:
                pack_columns |= term.columns(output)
            return pack_columns

        if needs_policy_logprobs or any(term.reads_policy_before for term in self.terms):
            columns |= self.runner.columns(self.policy, batch, policy_columns)
        if self.critic is not None:
            columns |= self.critic.evaluate(self.runner, batch)
        self._reshard()
        at_reference = False
        if "reference_NT" in columns:
            policy_NT = columns.get("policy_NT", batch.old_logprobs_NT.to(self.device))
            gaps_NT = torch.where(batch.mask_NT.to(self.device), policy_NT - columns["reference_NT"], 0.0)
            at_reference = float(gaps_NT.abs().max()) <= AT_REFERENCE[self.dtype]
        return PolicyEvaluation(**columns, at_reference=at_reference)

    def _reshard(self) -> None:
        if self.ranks.mesh is not None:
            for network in filter(None, (self.policy, self.reference, self.critic and self.critic.critic)):
                reshard(network)

    def learn(self, batch: Batch, credit: Credit, before: PolicyEvaluation, *, step: int) -> BatchUpdates:
        """Makes `passes` passes over the batch, with `minibatches` updates each; `before` is the result of `evaluate`.

        The first steps (1, 2, ...) may update the critic alone, and every tenth step evaluates one group again after
        its last update (`TokenTrace.updated`).

        Returns:
            Metrics of the last pass (`sampler_learner_gap` and its mean are from the first update), and the forward
            passes. An update whose loss or gradient is not finite is not made; `skipped_updates` counts them.
        """
        a, critic = self.algorithm, self.critic
        critic_only = a.warms_up(step)
        inputs, metrics = UpdateInputs.of(
            batch, credit, before, a, kl_coef=self.kl_coef, entropy_bonus=self.entropy_coefs[1]
        )
        for term in self.terms:
            metrics |= term.metrics(inputs)
        metrics |= {} if critic is None else critic.metrics(inputs)

        # The updates. Learning rates follow the turn, which counts updates whether they had a gradient or not.
        passes: list[list[UpdatePass]] = []
        turn = (step - 1) * a.updates.count
        for _ in range(a.updates.passes):
            seed = self.optimizer.updates + (0 if critic is None else critic.optimizer.updates)
            parts = minibatches(batch, a.updates.minibatches, seed)
            passes.append([self._update(inputs, rows, critic_only, turn + n) for n, rows in enumerate(parts)])
            turn += a.updates.minibatches

        sums = [update.metrics["grad_norm"] + update.metrics.get("critic_grad_norm", 0.0) for update in chain(*passes)]
        if skipped := sum(not math.isfinite(norm) for norm in sums):
            metrics["skipped_updates"] = skipped
        metrics |= averaged([update.metrics for update in passes[-1]])
        # The gap is of the first update with a gradient; after it the policies differ because of the updates.
        for name in ("sampler_learner_gap", "sampler_learner_gap_mean"):
            metrics[name] = next((update.metrics[name] for update in passes[0] if name in update.metrics), math.nan)

        # The coefficients of the next step.
        if a.kl is not None:
            metrics["kl_coef"] = self.kl_coef
            if math.isfinite(metrics.get("kl", math.nan)):
                self.kl_coef = a.kl.next_coef(self.kl_coef, metrics["kl"])
        if a.entropy_options.entropy_target is not None:
            metrics["entropy_coef"] = self.entropy_coefs[1]
        self.entropy_coefs = a.entropy_options.next_coefs(self.entropy_coefs, metrics.get("entropy", math.nan))

        watched = [] if critic_only else watched_group(batch, inputs.advantages_NT, step)
        packs = self.runner.packs(batch, watched)
        with torch.no_grad(), autocast(self.device, self.dtype):
            again = [TokenPass.of(pack, pack_forward(self.policy, pack, batch.sampling)) for pack in packs]
        self._reshard()
        return BatchUpdates(metrics, inputs, passes[-1], watched, again, critic_only)

    def refresh_reference(self) -> None:
        """Moves the reference to the policy, or towards it (iterative GRPO, DeepSeekMath 4.1.4)."""
        if self.reference is not None and self.algorithm.kl is not None:
            mix_weights(self.reference, self.policy, self.algorithm.kl.reference_mixup)

    def _update(self, inputs: UpdateInputs, rows: Sequence[int], critic_only: bool, turn: int) -> UpdatePass:
        """Makes one update from some rows of the batch."""
        batch, critic, objective = inputs.batch, self.critic, self.algorithm.objective
        self.optimizer.turn = turn
        learning_rate = self.optimizer.learning_rate
        if critic is not None:
            critic.optimizer.turn = turn

        # Each token's weight in the loss, from all tokens of the update; 0 in the other rows of the batch.
        group_ids_n = torch.tensor([batch.group_of_N[row] for row in rows])
        mask_nT, length = batch.trained_NT[list(rows)], batch.sampling.max_tokens
        weights_nT = objective.weights_of_groups(mask_nT, group_ids_n, max_tokens=length)
        weights_NT = torch.zeros(batch.mask_NT.shape)
        weights_NT[list(rows)] = check_tensor("weights", weights_nT, (len(rows), batch.mask_NT.shape[1]))

        # Packs of the rows that any term moves, and each term's loss of a pack.
        moves_N = torch.stack([term.moves(inputs, rows, weights_NT) for term in self.terms]).any(0)
        moving = [] if critic_only else [row for row in rows if moves_N[row]]
        packs, prefix = self.runner.learned_packs(self.policy, batch, moving)
        pack_losses = [term.prepare(self.runner, inputs, packs, rows, weights_NT) for term in self.terms]

        # The gradient of their sum, pack by pack; of several ranks each computes some packs.
        losses = [partial(self._pack_loss, inputs, pack, weights_NT, pack_losses) for pack in packs]
        networks = [self.policy, *chain.from_iterable(term.networks for term in self.terms)]
        results = self.runner.add_gradients(losses, packs, networks, prefix)
        metrics_by_pack = zip(results, read_metrics([stats for stats, _ in results.values()]), strict=True)
        metrics = combined(list(self.ranks.merged(metrics_by_pack, "metrics")))
        passes = all_passes(packs, {index: token_pass for index, (_, token_pass) in results.items()}, self.ranks)
        if critic is not None:
            metrics |= critic.add_gradients(self.runner, inputs, rows)

        # Without any signal there is no gradient: skip the optimizer, whose decay and momentum would move the weights.
        loss = metrics.get("loss", 0.0) + metrics.get("value_loss", 0.0)
        metrics["grad_norm"] = step_if_finite(self.optimizer, loss) if packs else 0.0
        if critic is not None:
            metrics["critic_grad_norm"] = critic.step(inputs, rows, loss)
        metrics["learning_rate"] = learning_rate
        return UpdatePass(metrics, passes)

    def _pack_loss(
        self, inputs: UpdateInputs, pack: Pack, weights_NT: Tensor, pack_losses: Sequence[PackLoss]
    ) -> tuple[Tensor, tuple[Stats, TokenPass]]:
        """The sum of the terms for one pack; its metrics and its log-probs."""
        batch, bonus = inputs.batch, inputs.entropy_bonus
        with autocast(self.device, self.dtype), noted_routing() as routing:
            output = pack_forward(self.policy, pack, batch.sampling, entropy_gradient=bonus > 0)
        forward = PackPass.of(inputs, pack, output, routing, weights_NT)
        loss, stats = pack_losses[0](forward)
        for pack_loss in pack_losses[1:]:
            addend, term_stats = pack_loss(forward)
            loss = loss + addend
            stats = stats | term_stats
        sampled_nT = forward.tokens.sampler_logprobs_NT
        assert sampled_nT is not None
        gaps_C = output.logprobs_C.detach() - sampled_nT[pack.row_C, pack.column_C]
        stats = stats | {
            "loss": (loss.detach(), len(gaps_C)),
            "sampler_learner_gap": (gaps_C.abs().max(), len(gaps_C)),
            "sampler_learner_gap_mean": (gaps_C.mean(), len(gaps_C)),
        }
        return loss, (
            {name: (value.detach(), count) for name, (value, count) in stats.items()},
            TokenPass.of(pack, output),
        )
