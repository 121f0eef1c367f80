"""What verl's keys mean that several decide together: batches, clips, files and rewards; the rest is in verl.yaml."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from grouprl.tools.imported.table import Given, Outcome, changed, folder_name, listed, tracker_names, unsupported
from grouprl.tools.imported.trl_rules import HELD_OUT

ESTIMATOR = "algorithm.adv_estimator"
ACTOR = "actor_rollout_ref.actor."
MODE = f"{ACTOR}policy_loss.loss_mode"
_ALL_KEYS = 150  # a file with more is a resolved one, which names every key
_DPPO = {"dppo_tv": "algorithm.divergence_tv", "dppo_kl": "algorithm.divergence_kl"}


def refills(settings: Given) -> int:
    """Batches that may be sampled in place of dropped groups."""
    most = settings["algorithm.filter_groups.max_num_gen_batches"]
    return int(most - 1 if most > 0 else 100)


def mini_batch(settings: Given, value: Any) -> Outcome:
    """Prompts of an update."""
    prompts = settings["data.train_batch_size"]
    if prompts % value:
        return unsupported(f"expected a divisor of data.train_batch_size={prompts}, both in prompts")
    words = f"{prompts} prompts / {value} prompts (not completions)"
    return Outcome("equal", {"algorithm.minibatches": prompts // value}, words)


def clip(side: str, settings: Given, value: float) -> Outcome:
    """The lower or upper clip, which is one of the log-ratio with geo_mean, and a divergence with dppo_*."""
    mode = settings[MODE]
    if mode in ("sapo", "gpg"):
        return Outcome("not needed", words=f"no effect with {mode}")
    if mode in _DPPO:
        return Outcome("not needed", words="see loss_mode")
    if mode == "geo_mean":
        edge = -math.expm1(-value) if side == "low" else math.expm1(value)
        return Outcome("equal", {f"algorithm.clip_{side}": edge}, f"a log-ratio of {value}")
    if mode == "cispo" and side == "low" and value > 1:  # a ratio is never below 0
        return Outcome("equal", {"algorithm.clip_low": 1.0}, f"{value}: no lower bound")
    return Outcome("equal", {f"algorithm.clip_{side}": value})


def clip_ratio(settings: Given, value: Any) -> Outcome:
    """The clip where clip_ratio_low and clip_ratio_high are null, which they are not by default."""
    sides = {side: settings[f"{ACTOR}clip_ratio_{side}"] for side in ("low", "high")}
    outcomes = [clip(side, settings, value) for side, bound in sides.items() if bound is None]
    if not outcomes:
        words = f"{value} has no effect: clip_ratio_low={sides['low']} and clip_ratio_high={sides['high']} apply"
        return Outcome("not needed", words=words)
    return Outcome(outcomes[0].verdict, {key: bound for outcome in outcomes for key, bound in outcome.ours.items()})


def dppo(settings: Given, value: str) -> Outcome:
    """A detached ratio with an upper bound, CISPO's, and the mask on probabilities."""
    sides = [settings[f"{ACTOR}clip_ratio_{side}"] for side in ("low", "high")]
    low, high = (settings[f"{ACTOR}clip_ratio"] if bound is None else bound for bound in sides)
    if low != high:
        return unsupported(f"expected clip_ratio_low equal to clip_ratio_high, one divergence, got {low} and {high}")
    weights = {"algorithm.clip_low": 1.0, "algorithm.clip_high": settings[f"{ACTOR}clip_ratio_c"] - 1}
    return Outcome("equal", {"algorithm.surrogate": "cispo", **weights, _DPPO[value]: low})


def files(key: str, settings: Given, value: Any) -> Outcome:
    """One data file, where the file names it; verl's default is an example's."""
    if ("data.train_files" if key == "task.path" else "data.val_files") not in settings.named:
        return Outcome("equal", words="the recipe leaves out verl's default, an example file")
    names = value if isinstance(value, list) else [value]
    if len(names) != 1:
        return unsupported("expected one file: join them, or make a mixture of tasks (docs/tasks.md)")
    ours = {key: at_home(names[0])} if names[0] else {}
    if key != "task.path" or not ours:
        return Outcome("equal", ours)
    ours["task.name"] = "jsonl"
    has_others = "data.val_files" in settings.named and settings["data.val_files"]
    return Outcome("equal", ours) if has_others else Outcome("changed", ours, HELD_OUT)


def no_images(key: str, settings: Given, value: Any) -> Outcome:
    """A column of images or other media, which a file with all keys names in any case."""
    if value == settings.entries[key].default and (key not in settings.named or len(settings.named) > _ALL_KEYS):
        return Outcome("equal", words="GroupRL reads no such column")
    return unsupported("GroupRL trains on text only, without images, videos and sounds")


def model_path(settings: Given, value: Any) -> Outcome:
    """The model, where the script names it; verl's default is an example's."""
    if "actor_rollout_ref.model.path" not in settings.named or value is None:
        return Outcome("not needed", words="the recipe leaves out verl's default, an example folder")
    return Outcome("equal", {"model.path": at_home(str(value))})


def at_home(path: str) -> str:
    """A path with the home folder in the place of ~."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


def trackers(_: Given, value: Any) -> Outcome:
    """The trackers by name."""
    names, others = tracker_names(value)
    left = [name for name in others if name not in ("console", "file")]
    words = f"without {listed(left)}" if left else ""
    return Outcome("changed" if left else "equal", {"trackers.names": names} if names else {}, words)


def experiment(_: Given, value: Any) -> Outcome:
    """The run's folder."""
    return Outcome("equal", {"name": folder_name(str(value))})


def compute_score(settings: Given, value: Any) -> Outcome:
    """The user's compute_score; without one verl picks a scorer by data_source."""
    at = "reward.custom_reward_function" if settings["reward.custom_reward_function.path"] else "custom_reward_function"
    path = settings[f"{at}.path"]
    if not path:
        return changed("verl's scorer by data_source", {}, "name yours: --reward FILE.py:compute_score")
    name = settings[f"{at}.name"] or "compute_score"
    prefix = f"{at}.reward_kwargs."
    arguments = {key.removeprefix(prefix): entry for key, entry in settings.named.items() if key.startswith(prefix)}
    reward = {"name": name, "path": str(path).removeprefix("file://")} | ({"arguments": arguments} if arguments else {})
    return Outcome("equal", {"rewards": [reward], "task.arguments.verifier": name}, "runs once per completion")


def overlong(at: str, settings: Given, value: Any) -> Outcome:
    """DAPO's penalty on the last tokens before the limit, of the manager dapo."""
    if not value:
        return Outcome("equal")
    managers = (settings["reward_model.reward_manager"], settings["reward.reward_manager.name"])
    if "dapo" not in managers:
        return Outcome("not needed", words="no effect without reward_manager: dapo")
    length, limit = settings[f"{at}.overlong_buffer_cfg.len"], settings[f"{at}.max_resp_len"]
    if settings[f"{at}.overlong_buffer_cfg.penalty_factor"] != 1 or limit != settings["data.max_response_length"]:
        return unsupported("expected penalty_factor=1 and max_resp_len equal to data.max_response_length")
    ours = {"algorithm.overlong_buffer": length / limit}
    return Outcome("equal", ours, f"{length} of {limit} tokens")
