"""What verl's keys mean that depend on each other: the estimator, batches, the KL, the clip, data and rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grouprl.tools.imported.table import Given, Outcome, Rule, changed, listed, unsupported
from grouprl.tools.imported.trl_parts import HELD_OUT

ESTIMATOR = "algorithm.adv_estimator"
ACTOR = "actor_rollout_ref.actor."
MODEL = "actor_rollout_ref.model."
_ALL_KEYS = 150  # a file with more is a resolved one, which names every key
_NO_STD = {"algorithm.std": "population", "algorithm.eps": 1e-6}  # the preset has another, for a deviation


def estimator(given: Given, value: Any) -> Outcome:
    """GAE with a critic unless the file says grpo."""
    if value == "gae":
        ours = {"algorithm.lam": given["algorithm.lam"], "algorithm.gamma": given["algorithm.gamma"]}
        words = "verl's default: PPO with a critic, algorithm=ppo, whose critic has a head and batches of its own here"
        if ESTIMATOR in given.named:
            return Outcome("changed", ours, words)
        return Outcome("changed", ours, f"{words}; for GRPO the file must say algorithm.adv_estimator: grpo")
    if value == "grpo":
        scale = "group_std" if given["algorithm.norm_adv_by_std_in_grpo"] else "none"
        return Outcome("equal", {"algorithm.scale": scale, **(_NO_STD if scale == "none" else {})})
    if value == "rloo":
        return Outcome("equal", {"algorithm.baseline": "leave_one_out", "algorithm.scale": "none", **_NO_STD})
    return unsupported("expected gae, grpo or rloo")


def of_critic(key: str) -> Rule:
    """A setting of the critic, where there is one."""

    def rule(given: Given, value: Any) -> Outcome:
        return Outcome("equal", {key: value}) if given[ESTIMATOR] == "gae" else Outcome("not needed", words="no critic")

    return rule


def completions(given: Given, value: Any) -> Outcome:
    """Completions of a prompt; 1 unless the file says more."""
    if value < 2 and given[ESTIMATOR] != "gae":
        return unsupported(
            f"{given[ESTIMATOR]} compares completions of a prompt: expected n of at least 2 (default: 1)"
        )
    return Outcome("equal", {"rollout.group_size": value})


def mini_batch(given: Given, value: Any) -> Outcome:
    """Prompts of an update."""
    prompts = given["data.train_batch_size"]
    if prompts % value:
        return unsupported(f"expected a divisor of data.train_batch_size={prompts}, both in prompts")
    words = f"{prompts} prompts / {value} prompts (not completions)"
    return Outcome("equal", {"algorithm.minibatches": prompts // value}, words)


def kl_loss(given: Given, value: Any) -> Outcome:
    """Whether the loss has a KL."""
    in_reward = given["algorithm.use_kl_in_reward"]
    if value and in_reward:
        return unsupported("expected one of use_kl_loss and algorithm.use_kl_in_reward")
    if not value:
        return Outcome("equal", {} if in_reward else {"algorithm.kl_coef": 0.0}, "" if in_reward else "no KL")
    ours = {"algorithm.kl_coef": given[f"{ACTOR}kl_loss_coef"], "algorithm.kl_in": "loss"}
    return Outcome("equal", ours, "verl clamps a token's KL at 10 nats")


def kl_loss_coef(given: Given, value: Any) -> Outcome:
    """The weight of that KL, which alone does nothing."""
    if given[f"{ACTOR}use_kl_loss"]:
        return Outcome("equal", {"algorithm.kl_coef": value})
    return Outcome("not needed", words=f"{value} has no effect without use_kl_loss")


def kl_loss_type(given: Given, value: Any) -> Outcome:
    """The estimator of that KL."""
    known = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
    if not given[f"{ACTOR}use_kl_loss"]:
        return Outcome("not needed", words="no effect without use_kl_loss")
    if value not in known:
        return unsupported(f"expected one of {listed(known)}")
    return Outcome("equal", {"algorithm.kl_estimator": known[value]})


def kl_in_reward(given: Given, value: Any) -> Outcome:
    """Whether the rewards of tokens have a KL."""
    if not value:
        return Outcome("equal")
    if given[ESTIMATOR] != "gae" or given["algorithm.kl_ctrl.type"] != "fixed":
        return unsupported("expected it with adv_estimator: gae and a fixed kl_ctrl: else set use_kl_loss")
    if given["algorithm.kl_penalty"] not in ("kl", "k1"):
        return unsupported("expected kl_penalty: kl")
    ours = {"algorithm.kl_coef": given["algorithm.kl_ctrl.kl_coef"], "algorithm.kl_in": "reward"}
    return Outcome("equal", {**ours, "algorithm.kl_estimator": "k1"})


def filter_groups(given: Given, value: Any) -> Outcome:
    """Whether groups of equal rewards are dropped and replaced."""
    if not value:
        return Outcome("equal")
    most = given["algorithm.filter_groups.max_num_gen_batches"]
    ours = {"algorithm.drop_equal": True, "algorithm.refills": most - 1 if most > 0 else 100}
    return changed(f"at most {most} batches (0 = any number)", ours, "refills replace only the dropped groups")


def warmup(given: Given, value: Any) -> Outcome:
    """Updates of the warm-up; below 0 the ratio counts."""
    steps = value if value > 0 else given[f"{ACTOR}optim.lr_warmup_steps_ratio"]
    if not steps:
        return Outcome("equal", {"learner.warmup_steps": 0})
    why = "verl schedules by trainer step, from a rate of 0"
    return changed(steps, {"learner.warmup_steps": steps}, why)


def schedule(given: Given, value: Any) -> Outcome:
    """The learning rate over the run."""
    low = given[f"{ACTOR}optim.min_lr_ratio"] or 0.0
    if value == "constant":
        return Outcome("equal", {"learner.schedule": "constant"})
    if value == "cosine" and given[f"{ACTOR}optim.num_cycles"] == 0.5:
        return Outcome("equal", {"learner.schedule": "cosine", "learner.min_lr_ratio": low})
    return unsupported("expected constant, or cosine with num_cycles=0.5")


def warmup_style(given: Given, value: Any) -> Outcome:
    """The older name of the schedule, which counts where it is given."""
    return Outcome("equal") if value is None else schedule(given, value)


def weight_decay(given: Given, value: Any) -> Outcome:
    """The decay, which verl gives norms and biases too."""
    if not value:
        return Outcome("equal", {"learner.weight_decay": value})
    return changed(value, {"learner.weight_decay": value}, "no decay of norms and biases here")


def epochs(given: Given, value: Any) -> Outcome:
    """Passes over the problems, where total_training_steps is not set."""
    if given["trainer.total_training_steps"]:
        return Outcome("not needed", words="total_training_steps applies")
    return Outcome("equal", {"epochs": float(value)})


def every(key: str, value: Any) -> Outcome:
    """Steps between events; below 1 there are none."""
    return Outcome("equal", {key: max(0, value)})


def files(theirs: str, key: str, given: Given, value: Any) -> Outcome:
    """One data file, where the script names it; verl's default is an example's."""
    if theirs not in given.named:
        return Outcome("equal", words="the recipe leaves out verl's default, an example file")
    names = value if isinstance(value, list) else [value]
    if len(names) != 1:
        return unsupported("expected one file: join them, or make a mixture of tasks (docs/tasks.md)")
    ours = {key: at_home(names[0])} if names[0] else {}
    if key != "task.path" or not ours:
        return Outcome("equal", ours)
    ours["task.name"] = "jsonl"
    has_others = "data.val_files" in given.named and given["data.val_files"]
    return Outcome("equal", ours) if has_others else Outcome("changed", ours, HELD_OUT)


def prompt_limit(given: Given, value: Any) -> Outcome:
    """Tokens of the longest prompt: verl leaves out, cuts, or stops at longer ones."""
    if given["data.filter_overlong_prompts"]:
        return changed(value, {}, f"no limit; verl trains on no prompt of more than {value} tokens: filter the file")
    if given["data.truncation"] != "error":
        return changed(value, {}, f"no limit; verl cuts longer prompts ({given['data.truncation']})")
    return Outcome("equal", words="verl stops at a longer prompt, so its data has none")


def of_prompt_limit(given: Given, value: Any) -> Outcome:
    """What happens to prompts above the limit."""
    is_usual = value in (False, "error")
    return Outcome("equal") if is_usual else prompt_limit(given, given["data.max_prompt_length"])


def no_images(key: str, default: Any) -> Rule:
    """A column of images or other media, which a file with all keys names in any case."""

    def rule(given: Given, value: Any) -> Outcome:
        if value == default and (key not in given.named or len(given.named) > _ALL_KEYS):
            return Outcome("equal", words="GroupRL reads no such column")
        return unsupported("GroupRL trains on text only, without images, videos and sounds")

    return rule


def validation_rows(_: Given, value: Any) -> Outcome:
    """Problems of an evaluation; -1 = all."""
    return Outcome("equal", {"evaluation.problems": value} if value > 0 else {})


def model_path(given: Given, value: Any) -> Outcome:
    """The model, where the script names it; verl's default is an example's."""
    if f"{MODEL}path" not in given.named or value is None:
        return Outcome("not needed", words="the recipe leaves out verl's default, an example folder")
    return Outcome("equal", {"model.path": at_home(str(value))})


def at_home(path: str) -> str:
    """A path with the home folder in the place of ~."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


def lora(key: str, given: Given, value: Any) -> Outcome:
    """A setting of the adapter; rank 0 = none."""
    if not given[f"{MODEL}lora_rank"]:
        return Outcome("not needed", words="no adapter with lora_rank=0")
    return Outcome("equal", {f"model.lora.{key}": value})


def trackers(given: Given, value: Any) -> Outcome:
    """The trackers by name."""
    names = [value] if isinstance(value, str) else list(value or [])
    known = [name for name in names if name in ("tensorboard", "wandb", "trackio", "mlflow")]
    others = [name for name in names if name not in (*known, "console", "file")]
    words = f"without {listed(others)}" if others else ""
    return Outcome("changed" if others else "equal", {"trackers.names": known} if known else {}, words)


def correction(given: Given, value: Any) -> Outcome:
    """The weights for a sampler whose log-probs differ."""
    if value is None:
        return Outcome("equal")
    return Outcome("not needed", words="no correction: the native engine has the learner's log-probs")
