"""What TRL's keys mean that depend on each other: batches, the loss and the optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grouprl.tools.imported.table import Given, Outcome, changed, unsupported
from grouprl.types import UserError

_UNCLIPPED = ("cispo", "sapo")  # values of loss_type for which `delta` has no effect


@dataclass(frozen=True)
class Batches:
    """Completions of a generation and of an update, over all processes."""

    generation: int
    update: int

    @property
    def step(self) -> int:
        """Those of a step here: of one policy, in whole updates."""
        return max(self.generation, self.update)

    @property
    def updates(self) -> int:
        """Updates of a pass over a step."""
        return self.step // self.update


def batches_of(given: Given) -> Batches:
    """TRL's arithmetic: it counts completions per device, times the processes.

    Raises:
        UserError: the numbers do not divide; TRL refuses most of these too.
    """
    size, accumulated = whole(given, "num_generations"), whole(given, "gradient_accumulation_steps")
    device = whole(given, "per_device_train_batch_size") * given.world
    steps = accumulated if given["steps_per_generation"] is None else whole(given, "steps_per_generation")
    no_size = given["generation_batch_size"] is None
    found = Batches(device * steps if no_size else whole(given, "generation_batch_size"), device * accumulated)
    if found.step % found.update or found.step % found.generation or found.step % size:
        raise UserError(
            f"per_device_train_batch_size: expected whole updates of whole groups of {given['num_generations']} "
            f"completions, got {found.generation} completions in a generation and {found.update} in an update on "
            f"{given.world} processes: set --world to the number of processes, or change the file"
        )
    return found


def whole(given: Given, key: str) -> int:
    """A count from 1. Raises UserError for another value."""
    value = given[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value % 1:
        raise UserError(f"{key}: expected a whole number from 1, got {value!r:.80}: correct it")
    return int(value)


def per_device(given: Given, value: Any) -> Outcome:
    """Completions per device, to groups of a step."""
    found, size = batches_of(given), whole(given, "num_generations")
    text = (
        f"{value} completions x {given['gradient_accumulation_steps']} accumulated x {given.world} processes: "
        f"{found.step} completions a step = {found.step // size} groups"
    )
    return Outcome("equal", {"rollout.problems_per_step": found.step // size}, text)


def several_updates(given: Given, value: Any) -> Outcome:
    """Micro-batches of a generation, to the updates of a step."""
    found = batches_of(given)
    if found.generation < found.update and int(given["num_iterations"]) > 1:
        return unsupported("an update has several generations, and num_iterations is above 1")
    if found.generation < found.update and given["scale_rewards"] == "batch":
        return unsupported("an update has several generations, and scale_rewards: batch gives each its own deviation")
    words = f"micro-batches an update: {value}; updates a batch: {found.updates}"
    return Outcome("equal", {"algorithm.minibatches": found.updates}, words)


def in_steps(key: str, value: float, given: Given) -> Outcome:
    """A number of TRL's steps, which are updates, as steps here, which are batches; below 1 a share of max_steps."""
    share = ""
    if 0 < value < 1:
        if given["max_steps"] <= 0:
            return unsupported("a share of max_steps, which the file does not name: write the number of updates")
        share, value = f"{value} of max_steps = ", math.ceil(given["max_steps"] * value)
    updates = batches_of(given).updates * whole(given, "num_iterations")
    steps = math.ceil(value / updates)
    if updates == 1:
        return Outcome("equal", {key: steps}, f"{share}{value} updates" if share else "")
    words = f"{share}{value} updates = {value / updates:g} batches of {updates} updates"
    return Outcome("equal" if steps * updates == value else "changed", {key: steps}, words)


def max_steps(given: Given, value: Any) -> Outcome:
    """Updates in all; none = epochs."""
    return in_steps("steps", value, given) if value > 0 else Outcome("not needed", words="epochs apply")


def epochs(given: Given, value: Any) -> Outcome:
    """Passes over the problems, where max_steps is not set."""
    if given["max_steps"] > 0:
        return Outcome("not needed", words="max_steps applies")
    return Outcome("equal", {"epochs": float(value)})


def save_steps(given: Given, value: Any) -> Outcome:
    """Updates between checkpoints."""
    if given["save_strategy"] == "no":
        return changed("no checkpoints", {"checkpoint.every": 0}, "a run always saves at its end")
    if given["save_strategy"] != "steps" or value <= 0:
        return changed(f"{given['save_strategy']} {value}", {"checkpoint.every": 50}, "checkpoints count steps here")
    return in_steps("checkpoint.every", value, given)


def eval_steps(given: Given, value: Any) -> Outcome:
    """Updates between evaluations."""
    steps = value or given["logging_steps"]
    if given["eval_strategy"] == "steps" and steps > 0:
        return in_steps("evaluation.every", steps, given)
    return changed(given["eval_strategy"], {"evaluation.every": 0}, "a run evaluates before and after training")


def scale_rewards(given: Given, value: Any) -> Outcome:
    """true, false, "group", "batch" or "none"."""
    word = {True: "group", False: "none"}.get(value, value)
    known = {"group": "group_std", "batch": "batch_std", "none": "none"}
    if word not in known:
        return unsupported("expected true, false, group, batch or none")
    ours = {"algorithm.scale": known[word]}
    unused = {"algorithm.std": "population", "algorithm.eps": 1e-6}  # the preset has others, for a deviation
    return Outcome("equal", {**ours, **unused} if word == "none" else ours)


def reward_mix(given: Given, value: Any) -> Outcome:
    """The sum of rewards that are compared, or of rewards that were."""
    if value == "sum_then_normalize":
        return Outcome("equal", {"algorithm.reward_mix": "sum_then_normalise"})
    if value == "normalize_then_sum":
        ours = {"algorithm.reward_mix": "normalise_then_sum"}
        return changed(value, ours, "TRL also normalizes the sum over the batch")
    return unsupported("expected sum_then_normalize or normalize_then_sum")


def loss_type(given: Given, value: Any) -> Outcome:
    """The surrogate and the mean of the loss."""
    batches = batches_of(given)
    token_mean: Mapping[str, Any] = {"algorithm.aggregate": "token_mean"}
    if value == "grpo":
        return Outcome("equal", {"algorithm.aggregate": "sequence_mean"})
    if value == "dr_grpo":
        ours = {"algorithm.aggregate": "constant"}
        return Outcome("equal", ours, "the constant is max_completion_length, here rollout.max_tokens")
    if value == "bnpo":
        if given["gradient_accumulation_steps"] * given.world == 1:
            return Outcome("equal", token_mean)
        return changed(value, token_mean, "the mean is over the update; TRL's is over each micro-batch")
    if value in ("dapo", "cispo"):
        ours = {**token_mean, **({"algorithm.surrogate": "cispo"} if value == "cispo" else {})}
        if batches.updates > 1:
            return changed(value, ours, "tokens of the update; TRL takes the mean token count of the batch's updates")
        return Outcome("equal", ours)
    if value == "sapo":
        return Outcome("equal", {"algorithm.surrogate": "sapo", "algorithm.aggregate": "sequence_mean"})
    if value == "luspo" and given["importance_sampling_level"] == "sequence":
        ours = {"algorithm.aggregate": "constant"}
        return changed(value, ours, "TRL's loss over max_completion_length: it matters to max_grad_norm, not to AdamW")
    return unsupported("expected dapo, grpo, bnpo, dr_grpo, cispo, sapo, or luspo with ratios of sequences")


def of_sapo(option: str, given: Given, value: Any) -> Outcome:
    """How fast the gate of sapo closes."""
    is_sapo = given["loss_type"] == "sapo"
    return Outcome("equal", {option: value}) if is_sapo else Outcome("not needed", words="no effect without sapo")


def epsilon(given: Given, value: Any) -> Outcome:
    """The lower side of the clip; the weights of cispo have no lower bound."""
    if given["loss_type"] == "cispo":
        return Outcome("equal", {"algorithm.clip_low": 1.0}, "cispo has no lower bound in TRL")
    if given["loss_type"] == "sapo":
        return Outcome("not needed", words="no effect with sapo")
    return Outcome("equal", {"algorithm.clip_low": value})


def epsilon_high(given: Given, value: Any) -> Outcome:
    """The upper side of the clip; for cispo the largest weight itself."""
    high = given["epsilon"] if value is None else value
    if given["loss_type"] == "sapo":
        return Outcome("not needed", words="no effect with sapo")
    if given["loss_type"] != "cispo":
        return Outcome("equal", {"algorithm.clip_high": high})
    if high < 1:
        return unsupported(f"the largest weight in TRL's cispo: expected at least 1 (MiniMax-M1: 5.0), got {high}")
    return Outcome("equal", {"algorithm.clip_high": high - 1}, f"largest weight {high} = 1 + clip_high")


def delta(given: Given, value: Any) -> Outcome:
    """The bound of the ratio where the advantage is negative."""
    if value is None:
        return Outcome("equal", {"algorithm.dual_clip": None} if given["loss_type"] not in _UNCLIPPED else {})
    if given["loss_type"] in _UNCLIPPED:
        return Outcome("not needed", words=f"no effect with {given['loss_type']}")
    high = given["epsilon"] if given["epsilon_high"] is None else given["epsilon_high"]
    if value < max(1 + high, 1.01):
        return unsupported("expected at least 1 + epsilon_high: a smaller delta also bounds positive advantages")
    return Outcome("equal", {"algorithm.dual_clip": value})


def beta(given: Given, value: Any) -> Outcome:
    """The weight of the KL; 0 = no reference."""
    return Outcome("equal", {"algorithm.kl_coef": value} if value else {}, "" if value else "no reference")


def kl_unbiased(given: Given, value: Any) -> Outcome:
    """Whether the KL is multiplied with the ratio."""
    if not given["beta"]:
        return Outcome("not needed", words="without beta there is no KL")
    if value and given["importance_sampling_level"] == "sequence":
        return unsupported("TRL uses the completion's ratio with importance_sampling_level: sequence")
    return Outcome("equal", {"algorithm.kl_unbiased": value})


def sync_reference(given: Given, value: Any) -> Outcome:
    """Updates after which the reference becomes the policy."""
    if not given["sync_ref_model"] or not given["beta"]:
        return Outcome("not needed", words="no effect without sync_ref_model and beta")
    return in_steps("algorithm.refresh_reference", value, given)


def reference_mixup(given: Given, value: Any) -> Outcome:
    """The share of the policy in the new reference."""
    if not given["sync_ref_model"] or not given["beta"]:
        return Outcome("not needed", words="no effect without sync_ref_model and beta")
    return Outcome("equal", {"algorithm.reference_mixup": value})


def entropy_share(given: Given, value: Any) -> Outcome:
    """The share of tokens, those of highest entropy, that are trained."""
    ours = {} if value == 1 else {"algorithm.entropy_share": value}
    if value != 1 and given["gradient_accumulation_steps"] > 1:
        return changed(value, ours, "a share of the update's tokens; TRL takes it of each micro-batch")
    return Outcome("equal", ours)


def entropy_coef(given: Given, value: Any) -> Outcome:
    """The weight of the entropy bonus, which TRL adds as a mean over the tokens of a micro-batch."""
    ours = {"algorithm.entropy_coef": value} if value else {}
    weighted = given["loss_type"] not in ("dapo", "cispo") or given["top_entropy_quantile"] < 1
    if (value or given["use_adaptive_entropy"]) and (weighted or given["gradient_accumulation_steps"] > 1):
        return changed(value, ours, "tokens have the loss's weights; TRL's bonus is a mean over each micro-batch")
    return Outcome("equal", ours)


def adaptive_entropy(given: Given, value: Any) -> Outcome:
    """The controller of Skywork-OR1, the same here, which moves the weight once a step."""
    if not value:
        return Outcome("equal")
    if (given["entropy_coef_min"], given["entropy_coef_max"]) != (0, 1):
        return unsupported("expected entropy_coef_min: 0.0 and entropy_coef_max: 1.0, the bounds here")
    ours = {"algorithm.entropy_target": given["entropy_target"], "algorithm.entropy_step": given["entropy_coef_delta"]}
    if batches_of(given).updates * given["num_iterations"] > 1:
        return changed(value, ours, "the weight changes once a step; TRL's changes at each update")
    return Outcome("equal", ours)


def top_k(_: Given, value: Any) -> Outcome:
    """The most probable tokens; none, 0 and -1 = all."""
    return Outcome("equal", {"rollout.top_k": max(0, value or 0)})


def generation_arguments(_: Given, value: Any) -> Outcome:
    """Arguments of generate, or of vLLM's sampling, beside the settings of TRL."""
    known = {"stop_strings": "stop", "stop": "stop", "min_p": "min_p", "top_p": "top_p", "temperature": "temperature"}
    if others := [key for key in value or {} if key not in known]:
        return unsupported(f"expected stop_strings; rollout has no setting for {', '.join(map(str, others))}")
    ours = {f"rollout.{known[key]}": [one] if isinstance(one, str) else one for key, one in (value or {}).items()}
    if "stop" in (value or {}):
        return changed("vLLM leaves the text out", ours, "the completion ends with it")
    return Outcome("equal", ours)


def schedule(given: Given, value: Any) -> Outcome:
    """The learning rate over the run."""
    extra = given["lr_scheduler_kwargs"] or {}
    if value in ("constant", "constant_with_warmup") and not extra:
        return Outcome("equal", {"learner.schedule": "constant"})
    if value in ("linear", "cosine") and not extra:
        return Outcome("equal", {"learner.schedule": value})
    if value == "cosine_with_min_lr" and set(extra) <= {"min_lr", "min_lr_rate"} and len(extra) == 1:
        low = extra.get("min_lr_rate", extra.get("min_lr", 0.0) / given["learning_rate"])
        return Outcome("equal", {"learner.schedule": "cosine", "learner.min_lr_ratio": low})
    return unsupported("expected constant, constant_with_warmup, linear, cosine or cosine_with_min_lr")


def warmup(given: Given, value: Any) -> Outcome:
    """Updates of the warm-up; below 1 a share of the run's."""
    if given["lr_scheduler_type"] == "constant" and value:
        return Outcome("not needed", words="constant has no warm-up in TRL")
    return _warm(value)


def warmup_ratio(given: Given, value: Any) -> Outcome:
    """The warm-up as a share of the run's updates; warmup_steps counts where both are given."""
    if not value or given["warmup_steps"] or given["lr_scheduler_type"] == "constant":
        return Outcome("not needed", words="no effect beside warmup_steps, or when 0")
    return _warm(value)


def _warm(value: float) -> Outcome:
    ours = {"learner.warmup_steps": value}
    if not value:
        return Outcome("equal", ours)
    return changed(value, ours, "update t has the rate t / W instead of (t - 1) / W, so the first has an effect")


def grad_norm(given: Given, value: Any) -> Outcome:
    """The norm of the gradient; 0 = no bound."""
    if not value:
        return changed("no bound", {"learner.max_grad_norm": 1e9}, "a bound that nothing reaches")
    return Outcome("equal", {"learner.max_grad_norm": value})
