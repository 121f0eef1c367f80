"""An algorithm as data: small parts, each with the options of one pure function in the same file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grouprl.algorithms.advantages import Advantage, CompletionAdvantage, GroupAdvantage
from grouprl.algorithms.corrections import Correction
from grouprl.algorithms.distillation import Distill
from grouprl.algorithms.entropy import Entropy
from grouprl.algorithms.experts import Experts
from grouprl.algorithms.filters import Filter
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Clip, Objective
from grouprl.algorithms.option import Part, option
from grouprl.algorithms.tokens import CriticAdvantage
from grouprl.algorithms.values import CopiedCritic, CriticPart
from grouprl.types import UserError


@dataclass(frozen=True)
class Updates(Part):
    """The number of updates per batch."""

    passes: int = option(1, "passes over each batch (mu of the papers)", low=1)
    minibatches: int = option(1, "updates in each pass", low=1)

    @property
    def count(self) -> int:
        """Updates of a batch."""
        return self.passes * self.minibatches


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of the GRPO family, composed of parts.

    The defaults are GRPO with outcome supervision (DeepSeekMath, arXiv:2402.03300, section 4.1.2);
    `algorithms.named` lists the family, docs/algorithms.md explains it. `config.algorithm` changes single options
    by name. Raises UserError for a value out of range, and for two parts that contradict each other.
    """

    name: str = "grpo"
    advantage: Advantage = GroupAdvantage()  # from rewards to the advantage of every token
    objective: Objective = Clip()  # from advantages and ratios to a loss
    kl: Kl | None = Kl()  # the anchor to a frozen reference
    filter: Filter | None = None  # which groups and completions enter the loss
    critic: CriticPart | None = None  # the network that PPO uses as baseline instead of the group
    correction: Correction | None = None  # for a sampler whose log-probs differ from the learner's
    entropy: Entropy | None = None  # an entropy bonus, or advantages for high-entropy tokens alone
    experts: Experts | None = None  # a loss that balances the experts of a mixture
    distill: Distill | None = None  # a teacher that has read more, or is another model
    updates: Updates = Updates()  # the number of updates per batch
    # Parts whose class a program defined, with that class: read from a record, where only the stock part can be made.
    missing: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, contradiction, why in _misfits(self):
            raise UserError(f"algorithm.{name}: expected another value with algorithm.{contradiction}, got {why}")

    @property
    def kl_coef(self) -> float:
        """Weight of the KL at the first step; 0 without a reference."""
        return 0.0 if self.kl is None else self.kl.kl_coef

    @property
    def has_kl_loss(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl is not None and self.kl.kl_in == "loss"

    @property
    def moves_reference(self) -> bool:
        """Whether the reference is replaced by the policy during the run."""
        return self.kl is not None and self.kl.refresh_reference > 0

    def refreshes_reference(self, step: int) -> bool:
        """Whether the policy replaces the reference after a step (1, 2, ...)."""
        return self.kl is not None and self.kl.refresh_reference > 0 and step % self.kl.refresh_reference == 0

    def warms_up(self, step: int) -> bool:
        """Whether a step (1, 2, ...) updates the critic alone."""
        return isinstance(self.critic, CopiedCritic) and step <= self.critic.critic_warmup

    @property
    def group_filter(self) -> Filter:
        """The filter; one that keeps everything when the algorithm has none."""
        return self.filter or Filter()

    @property
    def entropy_options(self) -> Entropy:
        """The entropy part; one that changes nothing when the algorithm has none."""
        return self.entropy or Entropy()

    @property
    def router_aux_coef(self) -> float:
        """Weight of the loss that balances experts; 0 without one."""
        return 0.0 if self.experts is None else self.experts.router_aux_coef


def _misfits(a: Algorithm) -> Iterator[tuple[str, str, str]]:
    """Yields (option, contradicting option, remedy) for contradictions between parts."""
    if a.critic is None and isinstance(a.advantage, CriticAdvantage):
        yield "baseline", "critic='none'", "'critic': set critic to copy or shared"
    if a.critic is not None and not isinstance(a.advantage, CriticAdvantage):
        yield "critic", "baseline", "one: a critic is a baseline for tokens: set baseline=critic and credit=token"
    if a.kl is not None and a.kl.kl_in == "reward" and (why := _no_kl_in_reward(a.advantage)):
        yield "kl_in", f"credit={a.advantage.credit!r}", f"'reward': {why}"
    if a.group_filter.drop_equal and (_mixes(a.advantage) or not a.advantage.compares_totals):
        yield "drop_equal", f"credit={a.advantage.credit!r}", "True: groups of equal rewards have a signal there"
    if a.distill is not None:
        part = a.distill
        if a.critic is not None:
            why = f"{part.distill_coef}: a critic has a signal in every group: remove it"
            yield "distill_coef", "baseline='critic'", why
        if part.distill_teacher == "reference" and a.kl is None:
            why = "'reference', which is not loaded: set kl_coef, or distill_teacher=policy"
            yield "distill_teacher", "kl_coef=0", why
        if part.reads == "prompt" and part.distill_teacher == "policy":
            why = "'prompt': a model that reads no more cannot teach itself: set distill_teacher to another one"
            yield "distill_reads", "distill_teacher='policy'", why
        if part.distill_where == "no_signal" and a.group_filter.drop_equal:
            yield "distill_where", "drop_equal=True", "'no_signal', which is dropped: set drop_equal=false"
        if part.distill_where == "no_signal" and (_mixes(a.advantage) or not a.advantage.compares_totals):
            why = "'no_signal': groups of equal rewards have a signal there: set distill_where=all"
            yield "distill_where", f"credit={a.advantage.credit!r}", why
    if a.objective.of_completions:
        name, per_token = ("surrogate", "clip") if a.objective.ratio == "token" else ("ratio", "token")
        got = getattr(a.objective, name)
        why = f"{got!r}: one ratio for the completion moves all of its tokens: set {name}={per_token}"
        if a.advantage.credit != "completion":
            yield name, "credit", why
        if a.entropy_options.entropy_share < 1:
            yield name, "entropy_share", why
        if a.correction is not None and a.correction.correction_level == "token":
            yield name, "correction_level", why
        for limit in ("divergence_tv", "divergence_kl"):
            if getattr(a.objective, limit) is not None:
                yield name, limit, why


def _mixes(advantage: Advantage) -> bool:
    """Whether several rewards are compared separately, so that equal sums may have a signal."""
    return isinstance(advantage, CompletionAdvantage) and advantage.reward_mix == "normalise_then_sum"


def _no_kl_in_reward(advantage: Advantage) -> str:
    """Why this advantage cannot compare rewards minus a KL penalty; '' when it can."""
    if advantage.credit == "step":
        return "reasoning steps are compared by their own rewards: set kl_in=loss"
    if _mixes(advantage):
        return "each reward is compared separately: set kl_in=loss"
    if isinstance(advantage, CompletionAdvantage) and advantage.scale != "none":
        return "equal rewards would be divided by the noise of their KL: set scale=none, or credit=token"
    return ""
