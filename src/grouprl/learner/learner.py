"""Updates the policy on one batch: log-probs, loss, gradient, optimizer step. A critic beside it learns with it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.algorithms.advantages import Credit, check_tensor
from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.spec import Algorithm
from grouprl.learner.batch import AT_REFERENCE, PolicyEvaluation, UpdateWork
from grouprl.learner.critic import CriticLearner, ValueLoss
from grouprl.learner.experts import ExpertShares, choices
from grouprl.learner.gradients import Loss, Result, add_gradients, step_if_finite
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.packs import (
    Pack,
    PackMetrics,
    after,
    averaged,
    beginnings,
    combined,
    cut,
    make_packs,
    minibatches,
    pack_forward,
    pack_hidden,
    pack_metrics,
    to_grid,
)
from grouprl.learner.teacher import Teacher, as_read, distillation
from grouprl.learner.trace import TokenPass, all_passes, recorded_tokens, unused_tokens, watched_group, watched_stages
from grouprl.models.adapters import as_reference
from grouprl.models.attention import hidden_states, is_packed
from grouprl.models.experts import noted_routing, watch_routers
from grouprl.models.layouts import Prefix
from grouprl.models.load import mix_weights
from grouprl.models.precision import autocast
from grouprl.models.prefix import LearnedPrefix, read_prefix, shared_tokens
from grouprl.models.progress import PROGRESS
from grouprl.models.shard import reshard
from grouprl.models.workers import side_by_side, worker_count
from grouprl.ranks import Ranks
from grouprl.types import Batch, TokenTrace, UserError

_Update = tuple[dict[str, float], list[TokenPass]]
"""The metrics of an update, and its forward passes."""


@dataclass(frozen=True)
class LearnResult:
    """Metrics of a batch's updates and numbers of its tokens, for the record."""

    metrics: dict[str, float]
    unused: Mapping[str, Tensor]  # [N, T] bool: tokens without a gradient, by category of `evaluation.ledger`
    tokens: list[tuple[list[float], TokenTrace]]  # [N] advantages and trace of the completion's tokens
    stages: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # see `watched_stages`


@dataclass
class Learner:
    """The networks and their optimizers. A run keeps the same objects; the weights and the KL coefficient change."""

    policy: PreTrainedModel
    reference: PreTrainedModel | None  # None when kl_coef is 0; the policy itself = the policy without its adapter
    optimizer: Optimizer
    algorithm: Algorithm
    device: torch.device
    dtype: str
    micro_batch_tokens: int
    critic: CriticLearner | None = None
    teacher: Teacher | None = None  # makes the teacher's prompts for `make_batch`; None = nobody teaches
    ranks: Ranks = field(default_factory=Ranks)  # those that compute every batch together
    kl_coef: float = field(init=False)  # of this step; 0 without a reference
    entropy_coefs: tuple[float, float] = field(init=False)  # as steered, and of this step's bonus

    def __post_init__(self) -> None:
        self.kl_coef = self.algorithm.kl_coef
        self.entropy_coefs = (self.algorithm.spread.entropy_coef,) * 2
        if self.algorithm.router_aux_coef > 0:
            watch_routers(self.policy)

    def evaluate(self, batch: Batch) -> PolicyEvaluation:
        """Makes one forward pass of every network that the algorithm needs before the first update on a batch."""
        a, kl = self.algorithm, self.algorithm.kl
        policy_too = a.correction is not None or a.spread.entropy_share < 1
        if self.dtype != "float32" or not batch.sampling.by_learner:  # else log-probs agree with the sampler's to 1e-5
            policy_too |= a.updates.count > 1 or (kl is not None and kl.kl_in == "reward")
        found: dict[str, Tensor] = {}
        if self.reference is not None:
            with as_reference(self.reference, self.policy) as frozen:
                begun = partial(after, self._prefix(frozen, batch))
                found |= self._evaluated(
                    batch, lambda pack: {"reference_NT": pack_forward(frozen, begun(pack), batch.sampling).logprobs_C}
                )
        if policy_too or self.critic is not None:
            trunk = None if self.critic is None else self.critic.critic.trunk
            prefixes = [network and self._prefix(network, batch) for network in (self.policy, trunk)]
            found |= self._evaluated(batch, partial(self._own_columns, batch, prefixes, policy_too=policy_too))
        return PolicyEvaluation(**found, at_reference=self._is_at_reference(batch, found))

    def _is_at_reference(self, batch: Batch, found: Mapping[str, Tensor]) -> bool:
        if "reference_NT" not in found:
            return False
        gap_NT = found.get("policy_NT", batch.old_logprobs_NT.to(self.device)) - found["reference_NT"]
        return float(gap_NT[batch.mask_NT.to(self.device)].abs().max()) <= AT_REFERENCE[self.dtype]

    def _evaluated(self, batch: Batch, columns: Callable[[Pack], dict[str, Tensor]]) -> dict[str, Tensor]:
        """[N, T] tensors of the columns [C] that a function gives for each pack."""
        found: dict[str, Tensor] = defaultdict(lambda: torch.zeros(batch.mask_NT.shape, device=self.device))
        packs = self._packs(batch, range(len(batch.group_of_N)), self._shared(batch))
        for pack, values in self._without_gradient(packs, columns):
            for name, values_C in values.items():
                found[name][list(pack.rows), : pack.width] = to_grid(pack, values_C)
        names = chain.from_iterable(self.ranks.gather(list(found), "evaluations"))
        return {name: self.ranks.combine(found[name], "evaluations") for name in dict.fromkeys(names)}

    def _without_gradient(self, packs: Sequence[Pack], compute: Callable[[Pack], Result]) -> list[tuple[Pack, Result]]:
        """Packs of this rank, and what a function gives for each."""
        tokens = [pack.tokens for pack in packs]
        own, counted = [packs[place] for place in self.ranks.passes(tokens)], len(self.ranks.own(tokens))
        found = self._each(own, compute)[:counted]
        self._reshard()
        return found

    def _each(self, packs: Sequence[Pack], compute: Callable[[Pack], Result]) -> list[tuple[Pack, Result]]:
        @torch.no_grad()
        def evaluate(pack: Pack) -> Result:
            PROGRESS.mark()
            with autocast(self.device, self.dtype):
                return compute(pack)

        results = side_by_side([partial(evaluate, pack) for pack in packs], worker_count(self.policy, len(packs)))
        return list(zip(packs, results, strict=True))

    def _reshard(self) -> None:
        if self.ranks.mesh is not None:
            for network in filter(None, (self.policy, self.reference, self.critic and self.critic.critic)):
                reshard(network)

    def _shared(self, batch: Batch) -> int:
        """Tokens that begin all prompts and are read once: of packed models, whose weights are whole on each rank."""
        once = is_packed(self.policy) and self.ranks.mesh is None and not self.algorithm.router_aux_coef
        return shared_tokens(beginnings(batch)) if once else 0

    def _prefix(self, network: PreTrainedModel, batch: Batch, *, learned: bool = False) -> Prefix | None:
        """What packs read of the shared tokens; on one thread where each pack is on one."""
        if not (shared := self._shared(batch)):
            return None
        job = partial(read_prefix, partial(hidden_states, network), batch.prompts[0][:shared], self.device)
        with torch.set_grad_enabled(learned), autocast(self.device, self.dtype):
            (found,) = side_by_side([job], worker_count(self.policy, 1))
        return found

    def _own_columns(
        self, batch: Batch, prefixes: Sequence[Prefix | None], pack: Pack, *, policy_too: bool
    ) -> dict[str, Tensor]:
        columns: dict[str, Tensor] = {}
        if policy_too or (self.critic is not None and self.critic.critic.trunk is None):
            own = pack_forward(self.policy, after(prefixes[0], pack), batch.sampling)
            columns |= {"policy_NT": own.logprobs_C, "entropies_NT": own.entropies_C} if policy_too else {}
        if self.critic is not None:
            trunk = self.critic.critic.trunk
            hidden_CH = own.hidden_CH if trunk is None else pack_hidden(trunk, after(prefixes[1], pack))
            columns["values_NT"] = self.critic.critic.values(hidden_CH)
        return columns

    def learn(self, batch: Batch, credit: Credit, before: PolicyEvaluation, *, step: int) -> LearnResult:
        """Makes `passes` passes over the batch, with `minibatches` updates each; `before` is the result of `evaluate`.

        The first steps (1, 2, ...) may update the critic alone, and every tenth step evaluates one group again after
        its last update (`TokenTrace.updated`).

        Returns:
            Metrics of the last pass (`sampler_learner_gap` and its mean are from the first update), and the trace of
            each token. An update whose loss or gradient is not finite is not made; `skipped_updates` counts them.
        """
        critic_only = self.algorithm.warms_up(step)
        work, metrics = UpdateWork.of(batch, credit, before, self.algorithm)
        passes, first = [], (step - 1) * self.algorithm.updates.count
        for _ in range(self.algorithm.updates.passes):
            seed = self.optimizer.updates + (self.critic.optimizer.updates if self.critic else 0)
            parts = minibatches(batch, self.algorithm.updates.minibatches, seed)
            passes.append([self._update(work, rows, critic_only, turn) for turn, rows in enumerate(parts, first)])
            first += self.algorithm.updates.minibatches
        last = averaged([update for update, _ in passes[-1]])
        norms = [(update["grad_norm"], update.get("critic_grad_norm", 0.0)) for one in passes for update, _ in one]
        if skipped := sum(not all(map(math.isfinite, pair)) for pair in norms):
            metrics["skipped_updates"] = skipped
        # The gap is of the first update with a gradient; after it the policies differ because of the updates.
        read = next((update for update, _ in passes[0] if "sampler_learner_gap" in update), {})
        gaps = {name: read.get(name, math.nan) for name in ("sampler_learner_gap", "sampler_learner_gap_mean")}
        metrics |= last | gaps | ({} if self.algorithm.kl is None else {"kl_coef": self.kl_coef})
        if self.algorithm.kl is not None and math.isfinite(metrics.get("kl", math.nan)):
            self.kl_coef = self.algorithm.kl.next_coef(self.kl_coef, metrics["kl"])
        if self.algorithm.distill is not None:
            trained = batch.trained_NT.sum().clamp(min=1)
            metrics["distill_share"] = float(batch.trained_NT[work.taught_N].sum() / trained)
        if self.algorithm.spread.entropy_target is not None:
            metrics["entropy_coef"] = self.entropy_coefs[1]
        self.entropy_coefs = self.algorithm.spread.next_coefs(self.entropy_coefs, metrics.get("entropy", math.nan))
        watched = [] if critic_only else watched_group(batch, work.advantages_NT, step)
        again = [self._evaluate_again(batch, pack) for pack in self._packs(batch, watched)] if watched else []
        self._reshard()
        last_pass = [part for _, parts in passes[-1] for part in parts]
        stages = watched_stages(self.algorithm, work, watched, last_pass, again, metrics.get("kl_coef", 0.0))
        unused = unused_tokens(self.algorithm.objective, work, passes[-1], critic_only)
        return LearnResult(metrics, unused, recorded_tokens(work, last_pass, again), stages)

    def refresh_reference(self) -> None:
        """Moves the reference to the policy, or towards it (iterative GRPO, DeepSeekMath 4.1.4)."""
        if self.reference is not None and self.algorithm.kl is not None:
            mix_weights(self.reference, self.policy, self.algorithm.kl.reference_mixup)

    def _update(self, work: UpdateWork, rows: Sequence[int], critic_only: bool, turn: int) -> _Update:
        """Makes one update from some rows of the batch; returns its metrics and forward passes."""
        critic = self.critic
        for optimizer in (self.optimizer, *([] if critic is None else [critic.optimizer])):
            optimizer.turn = turn  # by the step: the rate follows the run, whichever updates had no gradient
        batch, learning_rate = work.batch, self.optimizer.learning_rate
        weights_NT = torch.zeros(batch.mask_NT.shape)
        weights_nT = self.algorithm.objective.weights(
            batch.trained_NT[list(rows)], max_tokens=batch.sampling.max_tokens
        )
        weights_NT[list(rows)] = check_tensor("weights", weights_nT, (len(rows), batch.mask_NT.shape[1]))
        value = None if critic is None else critic.loss(work.valuation, rows)
        valued = [] if value is None else value.rows
        trunk = None if critic is None else critic.critic.trunk
        shares_trunk = critic is not None and trunk is None
        moving = [] if critic_only else self._moving(work, rows, weights_NT)
        packs, prefix = self._learned_packs(self.policy, batch, sorted({*moving, *valued}) if shares_trunk else moving)
        shares, shared = self._expert_shares(packs, weights_NT), value if shares_trunk else None
        taught = self._taught(batch, packs)
        losses = [partial(self._policy_loss, work, pack, weights_NT, shared, shares, taught) for pack in packs]
        networks = [self.policy, *([critic.critic] if critic is not None and shares_trunk else [])]
        done = self._add_gradients(losses, packs, networks, prefix)
        metrics = combined(list(self.ranks.merged(((place, one) for place, (one, _) in done.items()), "metrics")))
        passes = all_passes(packs, {place: one for place, (_, one) in done.items()}, self.ranks)
        if value is not None and trunk is not None:
            packs_of_critic, prefix = self._learned_packs(trunk, batch, valued)
            costs = [partial(self._critic_loss, value, trunk, pack) for pack in packs_of_critic]
            valuations = self._add_gradients(costs, packs_of_critic, [value.critic], prefix)
            metrics |= combined(list(self.ranks.merged(valuations.items(), "metrics")))
        # Without any signal there is no gradient: skip the optimizer, whose decay and momentum would move the weights.
        loss = metrics.get("loss", 0.0) + metrics.get("value_loss", 0.0)
        norm = step_if_finite(self.optimizer, loss) if packs else 0.0
        if critic is not None:
            metrics["critic_grad_norm"] = step_if_finite(critic.optimizer, loss) if valued else 0.0
        return {**metrics, "grad_norm": norm, "learning_rate": learning_rate}, passes

    def _add_gradients(
        self,
        losses: Sequence[Loss[Result]],
        packs: Sequence[Pack],
        networks: Sequence[nn.Module],
        prefix: LearnedPrefix | None,
    ) -> dict[int, Result]:
        tokens = [pack.tokens for pack in packs]
        workers = worker_count(networks[0], len(self.ranks.own(tokens)))
        return add_gradients(losses, networks, workers, costs=tokens, ranks=self.ranks, prefix=prefix)

    def _packs(self, batch: Batch, rows: Sequence[int], shared: int = 0) -> list[Pack]:
        return make_packs(batch, rows, self.micro_batch_tokens, self.device, shared=shared)

    def _learned_packs(
        self, network: PreTrainedModel, batch: Batch, rows: Sequence[int]
    ) -> tuple[list[Pack], LearnedPrefix | None]:
        packs = self._packs(batch, rows, self._shared(batch))
        if not packs or (found := self._prefix(network, batch, learned=True)) is None:
            return packs, None
        prefix = LearnedPrefix(found)
        return [after(prefix.read, pack) for pack in packs], prefix

    def _moving(self, work: UpdateWork, rows: Iterable[int], weights_NT: Tensor) -> list[int]:
        """Rows with a gradient: an advantage of 0 gives none without a KL in the loss, which is 0 at the reference."""
        a = self.algorithm
        pulled = a.pulls and (work.has_signal or not work.before.at_reference)
        everyone = pulled or self.entropy_coefs[1] > 0 or a.router_aux_coef > 0
        moving_N = (weights_NT > 0).any(1) & (everyone | work.taught_N | (work.advantages_NT != 0).any(1))
        return [row for row in rows if moving_N[row]]

    def _expert_shares(self, packs: Sequence[Pack], weights_NT: Tensor) -> ExpertShares | None:
        if not packs or not self.algorithm.router_aux_coef:
            return None
        found = self._without_gradient(packs, lambda pack: choices(self.policy, pack, cut(pack, weights_NT)))
        counts = chain.from_iterable(self.ranks.gather([counts_LE.tolist() for _, counts_LE in found], "experts"))
        tokens = int((weights_NT > 0).sum())
        return ExpertShares(torch.tensor(list(counts), device=self.device).sum(0) / tokens, tokens)

    def _taught(self, batch: Batch, packs: Sequence[Pack]) -> dict[int, Tensor]:
        """[tokens, H] hidden states of the teacher, for each row of this rank's packs that it teaches."""
        if not batch.teacher_prompts:
            return {}
        read, found, model = as_read(batch), dict[int, Tensor](), self._teaching_model
        # From each pack packs of its own: with `exact` what a rank computes does not depend on the other packs it has.
        own = (packs[place].rows for place in self.ranks.own([pack.tokens for pack in packs]))
        parts = ([row for row in rows if row in batch.teacher_prompts] for rows in own)
        mine = chain.from_iterable(self._packs(read, rows) for rows in parts)
        with as_reference(model, self.policy) if self._reference_teaches else nullcontext():
            for pack, hidden_CH in self._each(list(mine), partial(pack_hidden, model)):
                found |= zip(pack.rows, torch.split(hidden_CH, pack.row_C.bincount().tolist()), strict=True)
        return found

    @property
    def _reference_teaches(self) -> bool:
        return self.algorithm.distill is not None and self.algorithm.distill.distill_teacher == "reference"

    @property
    def _teaching_model(self) -> PreTrainedModel:
        if self.teacher is not None and self.teacher.model is not None:
            return self.teacher.model
        return self.reference if self._reference_teaches and self.reference is not None else self.policy

    def _policy_loss(
        self,
        work: UpdateWork,
        pack: Pack,
        weights_NT: Tensor,
        value: ValueLoss | None,
        shares: ExpertShares | None,
        taught: Mapping[int, Tensor],
    ) -> tuple[Tensor, tuple[PackMetrics, TokenPass]]:
        a, batch, bonus = self.algorithm, work.batch, self.entropy_coefs[1]
        with autocast(self.device, self.dtype), noted_routing() as noted:
            forward = pack_forward(self.policy, pack, batch.sampling, entropy_gradient=bonus > 0)
        logprobs_nT, reference_NT = to_grid(pack, forward.logprobs_C), work.before.reference_NT
        mask_nT, weights_nT = cut(pack, batch.mask_NT), cut(pack, weights_NT)
        sampled_nT, advantages_nT = cut(pack, batch.old_logprobs_NT), cut(pack, work.advantages_NT)
        counted_nT = mask_nT & (weights_nT > 0).any(1, keepdim=True) & (advantages_nT != 0).any(1, keepdim=True)
        loss, stats = self.token_loss(
            TokenGrid(
                logprobs_nT,
                logprobs_nT.detach() if work.old_NT is None else cut(pack, work.old_NT),
                advantages_nT,
                weights_nT,
                mask_nT,
                sampler_logprobs_NT=sampled_nT,
                reference_NT=None if reference_NT is None else cut(pack, reference_NT),
                counted_NT=counted_nT,
                rows=pack.rows,
            )
        )
        entropies_nT = to_grid(pack, forward.entropies_C)
        stats |= {"entropy": entropies_nT.detach()[counted_nT].mean()}
        counted = dict.fromkeys(stats, int(counted_nT.sum()))
        if a.pulls:  # the term is over all tokens
            counted.pop("kl", None)
        if bonus > 0:
            loss = loss - bonus * (weights_nT * entropies_nT).sum()
        if shares is not None:
            aux = shares.loss(noted, pack, weights_nT)
            loss, stats = loss + a.router_aux_coef * aux, stats | {"router_aux_loss": aux}
        if a.distill is not None:
            models = self.policy, self._teaching_model
            with autocast(self.device, self.dtype):
                cost, kl, tokens = distillation(pack, forward.hidden_CH, weights_nT, taught, models, batch.sampling)
            loss, stats = loss + a.distill.distill_coef * cost, stats | {"distill_kl": kl}
            counted["distill_kl"] = tokens
        if value is not None:
            cost, value_stats = value(pack, forward.hidden_CH)
            loss, stats = loss + value.coef * cost, stats | value_stats
        gaps = (logprobs_nT.detach() - sampled_nT)[mask_nT]
        stats |= {"loss": loss, "sampler_learner_gap": gaps.abs().max(), "sampler_learner_gap_mean": gaps.mean()}
        return loss, (pack_metrics(stats, counted, len(gaps)), TokenPass.of(pack, forward))

    def token_loss(self, tokens: TokenGrid) -> tuple[Tensor, dict[str, Tensor]]:
        """Equation 3 of arXiv:2402.03300 as a loss: sum of weight * (-min(ratio * A, clip(ratio) * A) + kl_coef * KL).

        The ratio is exp(log-prob - old log-prob); `grouprl.algorithms.surrogates` has the other surrogates.
        """
        a = self.algorithm
        result = a.objective.loss(tokens, a.kl, self.kl_coef if a.pulls else 0.0)
        if not isinstance(result, tuple):
            raise UserError(f"loss: expected (loss, stats), got {type(result).__name__}: return both")
        return check_tensor("loss", result[0], ()), result[1]

    @torch.no_grad()
    def _evaluate_again(self, batch: Batch, pack: Pack) -> TokenPass:
        with autocast(self.device, self.dtype):
            return TokenPass.of(pack, pack_forward(self.policy, pack, batch.sampling))

    def _critic_loss(self, value: ValueLoss, trunk: PreTrainedModel, pack: Pack) -> tuple[Tensor, PackMetrics]:
        with autocast(self.device, self.dtype):
            hidden_CH = pack_hidden(trunk, pack)
        cost, stats = value(pack, hidden_CH)
        return cost, pack_metrics(stats, {}, len(pack.row_C))
