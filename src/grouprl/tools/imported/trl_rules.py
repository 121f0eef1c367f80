"""What TRL's keys mean that several decide together: batches, steps, rewards, data, vLLM; the rest is in trl.yaml."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from grouprl.files import DATA_KINDS, data_kind
from grouprl.tools.imported.table import Given, Outcome, changed, folder_name, tracker_names, unsupported
from grouprl.types import UserError

HELD_OUT = (
    "every row -> 90 % of them: 10 % are held out, unless task.arguments.test_path names a file for the evaluation"
)


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


def batches_of(settings: Given) -> Batches:
    """TRL's arithmetic: it counts completions per device, times the processes.

    Raises:
        UserError: the numbers do not divide; TRL refuses most of these too.
    """
    size, accumulated = whole(settings, "num_generations"), whole(settings, "gradient_accumulation_steps")
    device = whole(settings, "per_device_train_batch_size") * settings.world
    steps = accumulated if settings["steps_per_generation"] is None else whole(settings, "steps_per_generation")
    no_size = settings["generation_batch_size"] is None
    batches = Batches(device * steps if no_size else whole(settings, "generation_batch_size"), device * accumulated)
    if batches.step % batches.update or batches.step % batches.generation or batches.step % size:
        raise UserError(
            f"per_device_train_batch_size: expected whole updates of whole groups of {settings['num_generations']} "
            f"completions, got {batches.generation} completions in a generation and {batches.update} in an update on "
            f"{settings.world} processes: start as many as TRL had (import-config: --world), or change these numbers"
        )
    return batches


def whole(settings: Given, key: str) -> int:
    """A count from 1. Raises UserError for another value."""
    value = settings[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value % 1:
        raise UserError(f"{key}: expected a whole number from 1, got {value!r:.80}: correct it")
    return int(value)


# Numbers that the cases of trl.yaml read.


def updates(settings: Given) -> int:
    """Updates of a pass over a step."""
    return batches_of(settings).updates


def all_updates(settings: Given) -> int:
    """Updates of all passes over a step."""
    return batches_of(settings).updates * whole(settings, "num_iterations")


def micro_batches(settings: Given) -> int:
    """Micro-batches of an update, over all processes."""
    return int(settings["gradient_accumulation_steps"] * settings.world)


def high(settings: Given) -> Any:
    """The upper side of the clip; for cispo the largest weight itself."""
    return settings["epsilon"] if settings["epsilon_high"] is None else settings["epsilon_high"]


def high_above_1(settings: Given) -> Any:
    """The upper side of the clip, from the largest weight of cispo."""
    return high(settings) - 1


def smallest_delta(settings: Given) -> Any:
    """The least bound of the ratio that leaves positive advantages alone."""
    return max(1 + high(settings), 1.01)


def entropy_is_weighted(settings: Given) -> bool:
    """Whether tokens have other weights in our entropy bonus than in TRL's, a mean over each micro-batch."""
    weighted = settings["loss_type"] not in ("dapo", "cispo", "vespo") or settings["top_entropy_quantile"] < 1
    return bool(weighted or settings["gradient_accumulation_steps"] > 1)


def lowest_rate(settings: Given) -> Any:
    """The last learning rate of cosine_with_min_lr over the first; None where neither of its settings is alone."""
    extra = settings["lr_scheduler_kwargs"] or {}
    if {*extra} == {"min_lr_rate"}:
        return extra["min_lr_rate"]
    return extra["min_lr"] / settings["learning_rate"] if {*extra} == {"min_lr"} else None


def vllm_address(settings: Given) -> str:
    """Where TRL's server listens."""
    host = "127.0.0.1" if settings["vllm_server_host"] == "0.0.0.0" else settings["vllm_server_host"]
    return settings["vllm_server_base_url"] or f"http://{host}:{settings['vllm_server_port']}"


# Keys


def per_device(settings: Given, value: Any) -> Outcome:
    """Completions per device, to groups of a step."""
    batches, size = batches_of(settings), whole(settings, "num_generations")
    text = (
        f"{value} completions x {settings['gradient_accumulation_steps']} accumulated x {settings.world} processes: "
        f"{batches.step} completions a step = {batches.step // size} groups"
    )
    return Outcome("equal", {"rollout.problems_per_step": batches.step // size}, text)


def several_updates(settings: Given, value: Any) -> Outcome:
    """Micro-batches of a generation, to the updates of a step."""
    batches = batches_of(settings)
    if batches.generation < batches.update and int(settings["num_iterations"]) > 1:
        return unsupported("an update has several generations, and num_iterations is above 1")
    if batches.generation < batches.update and settings["scale_rewards"] == "batch":
        return unsupported("an update has several generations, and scale_rewards: batch gives each its own deviation")
    words = f"micro-batches an update: {value}; updates a batch: {batches.updates}"
    return Outcome("equal", {"algorithm.minibatches": batches.updates}, words)


def in_steps(key: str, settings: Given, value: float) -> Outcome:
    """A number of TRL's steps, which are updates, as steps here, which are batches; below 1 a share of max_steps."""
    share = ""
    if 0 < value < 1:
        if settings["max_steps"] <= 0:
            return unsupported("a share of max_steps, which the file does not name: write the number of updates")
        share, value = f"{value} of max_steps = ", math.ceil(settings["max_steps"] * value)
    updates = all_updates(settings)
    steps = math.ceil(value / updates)
    if updates == 1:
        return Outcome("equal", {key: steps}, f"{share}{value} updates" if share else "")
    words = f"{share}{value} updates = {value / updates:g} batches of {updates} updates"
    return Outcome("equal" if steps * updates == value else "changed", {key: steps}, words)


def eval_steps(settings: Given, value: Any) -> Outcome:
    """Updates between evaluations."""
    steps = value or settings["logging_steps"]
    if settings["eval_strategy"] == "steps" and steps > 0:
        return in_steps("evaluation.every", settings, steps)
    return changed(settings["eval_strategy"], {"evaluation.every": 0}, "a run evaluates before and after training")


def generation_arguments(_: Given, value: Any) -> Outcome:
    """Arguments of generate, or of vLLM's sampling, beside the settings of TRL."""
    places = {"stop_strings": "stop", "stop": "stop", "min_p": "min_p", "top_p": "top_p", "temperature": "temperature"}
    if others := [key for key in value or {} if key not in places]:
        return unsupported(f"expected stop_strings; rollout has no setting for {', '.join(map(str, others))}")
    ours = {f"rollout.{places[key]}": [item] if isinstance(item, str) else item for key, item in (value or {}).items()}
    if "stop" in (value or {}):
        return changed("vLLM leaves the text out", ours, "the completion ends with it")
    return Outcome("equal", ours)


def model_arguments(settings: Given, value: Any) -> Outcome:
    """Keywords of from_pretrained."""
    keys = {"dtype", "torch_dtype", "attn_implementation", "revision", "use_cache", "device_map"}
    if foreign := set(value or {}) - keys:
        return unsupported(f"expected {', '.join(sorted(keys))}, got {', '.join(sorted(foreign))}")
    arguments = {key.removeprefix("torch_"): item for key, item in (value or {}).items()}
    revision = arguments.get("revision", "main")
    ours = {} if revision == "main" else {"model.revision": revision}
    if "dtype" not in arguments:
        return Outcome("equal", ours)
    outcome = settings.entries["dtype"].rule(settings, str(arguments["dtype"]).removeprefix("torch."))
    return Outcome(outcome.verdict, {**ours, **outcome.ours}, outcome.words)


def rewards(settings: Given, value: Any) -> Outcome:
    """Reward functions by name, and their weights."""
    if not value:
        return Outcome("not needed", words="TRL names them in Python: give --reward FILE.py:FUNCTION")
    names = [value] if isinstance(value, str) else list(value)
    factors = settings["reward_weights"] or [1.0] * len(names)
    if len(factors) != len(names):
        return unsupported(f"expected as many reward_weights as functions, got {len(factors)} for {len(names)}")
    rewards, notes = [], []
    for name, weight in zip(names, factors, strict=True):
        module, _, function = name.rpartition(".")
        if module:
            rewards.append({"name": function, "path": module.replace(".", "/") + ".py", "weight": float(weight)})
        elif name in ("accuracy_reward", "accuracy"):
            rewards.append({"name": name, "function": "math_verify", "weight": float(weight)})
            notes.append(f"{name} -> math_verify, which reads the column answer and requires a box or an answer tag")
        elif name in ("think_format_reward", "format"):
            rewards.append({"name": name, "function": "think_format", "weight": float(weight)})
            notes.append(f"{name} -> think_format, which requires the tags of thought and answer once, in order")
        else:
            return unsupported(
                f"{name} is no function that GroupRL has: write it into a file and name its module: my_rewards.short"
            )
    return Outcome("changed" if notes else "equal", {"rewards": rewards}, "; ".join(notes))


def dataset(settings: Given, value: Any) -> Outcome:
    """A file, or a data set of the hub."""
    if value is None:
        return Outcome("not needed", words="TRL names it in Python: give task.path=FILE or hub:OWNER/NAME")
    local = data_kind(value) in DATA_KINDS or str(value).startswith((".", "/"))
    configuration = f":{settings['dataset_config']}" if settings["dataset_config"] and not local else ""
    path = value if local else f"hub:{value}{configuration}"
    ours = {"task.name": "jsonl", "task.path": path}
    if settings["eval_strategy"] != "no" and not local:
        return Outcome("equal", {**ours, "task.arguments.test_path": path}, "the evaluation has the split test")
    return Outcome("changed", ours, HELD_OUT)


def run_name(settings: Given, value: Any) -> Outcome:
    """The run's folder; the last part of output_dir where it is not given."""
    name = value or str(settings["output_dir"] or "").rstrip("/").rpartition("/")[2]
    clean = folder_name(name)
    return Outcome("equal", {"name": clean} if clean else {})


def trackers(_: Given, value: Any) -> Outcome:
    """The trackers by name."""
    names, others = tracker_names(value)
    if not names:
        return Outcome("not needed", words="metrics.jsonl and the report have every metric")
    return Outcome("changed" if set(others) - {"none"} else "equal", {"trackers.names": names})
