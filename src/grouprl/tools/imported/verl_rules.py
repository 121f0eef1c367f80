"""What verl's keys mean that depend on each other: the estimator, batches, the loss, the KL, data and rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grouprl.tools.imported.table import Given, Outcome, changed, folder_name, listed, tracker_names, unsupported
from grouprl.tools.imported.trl_parts import HELD_OUT

ESTIMATOR = "algorithm.adv_estimator"
ACTOR = "actor_rollout_ref.actor."
MODEL = "actor_rollout_ref.model."
MODE = f"{ACTOR}policy_loss.loss_mode"
_ALL_KEYS = 150  # a file with more is a resolved one, which names every key
_NO_STD = {"algorithm.std": "population", "algorithm.eps": 1e-6}  # the preset has another, for a deviation
# One mean for each completion, whatever loss_agg_mode says.
_OWN_MEAN = ("sapo", "geo_mean")
_DPPO = {"dppo_tv": "algorithm.divergence_tv", "dppo_kl": "algorithm.divergence_kl"}
_MODES: Mapping[str, Mapping[str, Any]] = {
    "vanilla": {},
    # Its token form has the gradient of the completion's ratio where a completion has one advantage.
    "gspo": {"algorithm.ratio": "sequence", "algorithm.dual_clip": None},
    "sapo": {"algorithm.surrogate": "sapo"},
    "cispo": {"algorithm.surrogate": "cispo"},
    "geo_mean": {"algorithm.surrogate": "gmpo"},
}


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


def of_critic(key: str, given: Given, value: Any) -> Outcome:
    """A setting of the critic, where there is one."""
    return Outcome("equal", {key: value}) if given[ESTIMATOR] == "gae" else Outcome("not needed", words="no critic")


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


def every(key: str, _: Given, value: Any) -> Outcome:
    """Steps between events; below 1 there are none."""
    return Outcome("equal", {key: max(0, value)})


def files(key: str, given: Given, value: Any) -> Outcome:
    """One data file, where the file names it; verl's default is an example's."""
    if ("data.train_files" if key == "task.path" else "data.val_files") not in given.named:
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


def no_images(key: str, given: Given, value: Any) -> Outcome:
    """A column of images or other media, which a file with all keys names in any case."""
    if value == given.defaults[key] and (key not in given.named or len(given.named) > _ALL_KEYS):
        return Outcome("equal", words="GroupRL reads no such column")
    return unsupported("GroupRL trains on text only, without images, videos and sounds")


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


def trackers(_: Given, value: Any) -> Outcome:
    """The trackers by name."""
    known, others = tracker_names(value)
    left = [name for name in others if name not in ("console", "file")]
    words = f"without {listed(left)}" if left else ""
    return Outcome("changed" if left else "equal", {"trackers.names": known} if known else {}, words)


def experiment(_: Given, value: Any) -> Outcome:
    """The run's folder."""
    return Outcome("equal", {"name": folder_name(str(value))})


def correction(given: Given, value: Any) -> Outcome:
    """The weights for a sampler whose log-probs differ."""
    if value is None:
        return Outcome("equal")
    return Outcome("not needed", words="no correction: the native engine has the learner's log-probs")


# The loss


def loss_mode(given: Given, value: Any) -> Outcome:
    """The surrogate."""
    if value in _DPPO:
        return _dppo(given, value)
    if value not in _MODES:
        return unsupported(f"expected one of {listed((*_MODES, *_DPPO))}")
    if value in ("gspo", "geo_mean") and given[ESTIMATOR] == "gae":
        return unsupported("expected one advantage for each completion: adv_estimator: grpo or rloo")
    return Outcome("equal", _MODES[value])


def clip_of(side: str, given: Given, value: Any) -> Outcome:
    """The lower or upper clip, which is one of the log-ratio with geo_mean, and a divergence with dppo_*."""
    return _clip(given[MODE], side, value) if value is not None else Outcome("equal", words="see clip_ratio")


def clip_ratio(given: Given, value: Any) -> Outcome:
    """The clip where clip_ratio_low and clip_ratio_high are null, which they are not by default."""
    sides = {side: given[f"{ACTOR}clip_ratio_{side}"] for side in ("low", "high")}
    outcomes = [_clip(given[MODE], side, value) for side, own in sides.items() if own is None]
    if not outcomes:
        words = f"{value} has no effect: clip_ratio_low={sides['low']} and clip_ratio_high={sides['high']} apply"
        return Outcome("not needed", words=words)
    return Outcome(outcomes[0].verdict, {key: own for one in outcomes for key, own in one.ours.items()})


def largest_ratio(given: Given, value: Any) -> Outcome:
    """The bound of the dual clip."""
    mode = given[MODE]
    if mode == "vanilla":
        return Outcome("equal", {"algorithm.dual_clip": value})
    return Outcome("not needed", words="see loss_mode" if mode in _DPPO else f"no effect with {mode}")


def aggregate(given: Given, value: Any) -> Outcome:
    """The mean of the loss."""
    if given[MODE] in _OWN_MEAN:
        return Outcome(
            "equal", {"algorithm.aggregate": "sequence_mean"}, f"{given[MODE]} always has one mean per completion"
        )
    known = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean", "seq-mean-token-sum-norm": "constant"}
    if value not in known:
        return unsupported(f"expected one of {listed(known)}")
    factor = given[f"{ACTOR}loss_scale_factor"]
    if known[value] == "constant" and factor not in (None, given["data.max_response_length"]):
        return unsupported("expected loss_scale_factor to be null or data.max_response_length")
    return Outcome("equal", {"algorithm.aggregate": known[value]})


def of_sapo(key: str, given: Given, value: Any) -> Outcome:
    """A temperature of the soft gate, where there is one."""
    return Outcome("equal", {key: value}) if given[MODE] == "sapo" else Outcome("not needed", words="see loss_mode")


def _clip(mode: str, side: str, value: float) -> Outcome:
    if mode == "sapo":
        return Outcome("not needed", words="no effect with sapo")
    if mode in _DPPO:
        return Outcome("not needed", words="see loss_mode")
    if mode == "geo_mean":
        edge = -math.expm1(-value) if side == "low" else math.expm1(value)
        return Outcome("equal", {f"algorithm.clip_{side}": edge}, f"a log-ratio of {value}")
    if mode == "cispo" and side == "low" and value > 1:  # a ratio is never below 0
        return Outcome("equal", {"algorithm.clip_low": 1.0}, f"{value}: no lower bound")
    return Outcome("equal", {f"algorithm.clip_{side}": value})


def _dppo(given: Given, value: str) -> Outcome:
    """A detached ratio with an upper bound, CISPO's, and the mask on probabilities."""
    sides = [given[f"{ACTOR}clip_ratio_{side}"] for side in ("low", "high")]
    low, high = (given[f"{ACTOR}clip_ratio"] if own is None else own for own in sides)
    if low != high:
        return unsupported(f"expected clip_ratio_low equal to clip_ratio_high, one divergence, got {low} and {high}")
    weights = {"algorithm.clip_low": 1.0, "algorithm.clip_high": given[f"{ACTOR}clip_ratio_c"] - 1}
    return Outcome("equal", {"algorithm.surrogate": "cispo", **weights, _DPPO[value]: low})


# Rewards


def compute_score(given: Given, value: Any) -> Outcome:
    """The user's compute_score; without one verl picks a scorer by data_source."""
    at = "reward.custom_reward_function" if given["reward.custom_reward_function.path"] else "custom_reward_function"
    path = given[f"{at}.path"]
    if not path:
        return changed("verl's scorer by data_source", {}, "name yours: --reward FILE.py:compute_score")
    name = given[f"{at}.name"] or "compute_score"
    prefix = f"{at}.reward_kwargs."
    arguments = {key.removeprefix(prefix): one for key, one in given.named.items() if key.startswith(prefix)}
    made = {"name": name, "path": str(path).removeprefix("file://"), **({"arguments": arguments} if arguments else {})}
    return Outcome("equal", {"rewards": [made], "task.arguments.verifier": name}, "runs once per completion")


def overlong(at: str, given: Given, value: Any) -> Outcome:
    """DAPO's penalty on the last tokens before the limit, of the manager dapo."""
    if not value:
        return Outcome("equal")
    managers = (given["reward_model.reward_manager"], given["reward.reward_manager.name"])
    if "dapo" not in managers:
        return Outcome("not needed", words="no effect without reward_manager: dapo")
    length, limit = given[f"{at}.overlong_buffer_cfg.len"], given[f"{at}.max_resp_len"]
    if given[f"{at}.overlong_buffer_cfg.penalty_factor"] != 1 or limit != given["data.max_response_length"]:
        return unsupported("expected penalty_factor=1 and max_resp_len equal to data.max_response_length")
    ours = {"algorithm.overlong_buffer": length / limit}
    return Outcome("equal", ours, f"{length} of {limit} tokens")
