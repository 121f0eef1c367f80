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


# Numbers that the cases of trl.yaml read.


def updates(given: Given) -> int:
    """Updates of a pass over a step."""
    return batches_of(given).updates


def all_updates(given: Given) -> int:
    """Updates of all passes over a step."""
    return batches_of(given).updates * whole(given, "num_iterations")


def micro_batches(given: Given) -> int:
    """Micro-batches of an update, over all processes."""
    return int(given["gradient_accumulation_steps"] * given.world)


def high(given: Given) -> Any:
    """The upper side of the clip; for cispo the largest weight itself."""
    return given["epsilon"] if given["epsilon_high"] is None else given["epsilon_high"]


def high_above_1(given: Given) -> Any:
    """The upper side of the clip, from the largest weight of cispo."""
    return high(given) - 1


def smallest_delta(given: Given) -> Any:
    """The least bound of the ratio that leaves positive advantages alone."""
    return max(1 + high(given), 1.01)


def entropy_is_weighted(given: Given) -> bool:
    """Whether tokens have other weights in our entropy bonus than in TRL's, a mean over each micro-batch."""
    weighted = given["loss_type"] not in ("dapo", "cispo") or given["top_entropy_quantile"] < 1
    return bool(weighted or given["gradient_accumulation_steps"] > 1)


def lowest_rate(given: Given) -> Any:
    """The last learning rate of cosine_with_min_lr over the first; None where neither of its settings is alone."""
    extra = given["lr_scheduler_kwargs"] or {}
    if {*extra} == {"min_lr_rate"}:
        return extra["min_lr_rate"]
    return extra["min_lr"] / given["learning_rate"] if {*extra} == {"min_lr"} else None


def vllm_address(given: Given) -> str:
    """Where TRL's server listens."""
    host = "127.0.0.1" if given["vllm_server_host"] == "0.0.0.0" else given["vllm_server_host"]
    return given["vllm_server_base_url"] or f"http://{host}:{given['vllm_server_port']}"


# Keys


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


def in_steps(key: str, given: Given, value: float) -> Outcome:
    """A number of TRL's steps, which are updates, as steps here, which are batches; below 1 a share of max_steps."""
    share = ""
    if 0 < value < 1:
        if given["max_steps"] <= 0:
            return unsupported("a share of max_steps, which the file does not name: write the number of updates")
        share, value = f"{value} of max_steps = ", math.ceil(given["max_steps"] * value)
    updates = all_updates(given)
    steps = math.ceil(value / updates)
    if updates == 1:
        return Outcome("equal", {key: steps}, f"{share}{value} updates" if share else "")
    words = f"{share}{value} updates = {value / updates:g} batches of {updates} updates"
    return Outcome("equal" if steps * updates == value else "changed", {key: steps}, words)


def eval_steps(given: Given, value: Any) -> Outcome:
    """Updates between evaluations."""
    steps = value or given["logging_steps"]
    if given["eval_strategy"] == "steps" and steps > 0:
        return in_steps("evaluation.every", given, steps)
    return changed(given["eval_strategy"], {"evaluation.every": 0}, "a run evaluates before and after training")


def generation_arguments(_: Given, value: Any) -> Outcome:
    """Arguments of generate, or of vLLM's sampling, beside the settings of TRL."""
    known = {"stop_strings": "stop", "stop": "stop", "min_p": "min_p", "top_p": "top_p", "temperature": "temperature"}
    if others := [key for key in value or {} if key not in known]:
        return unsupported(f"expected stop_strings; rollout has no setting for {', '.join(map(str, others))}")
    ours = {f"rollout.{known[key]}": [one] if isinstance(one, str) else one for key, one in (value or {}).items()}
    if "stop" in (value or {}):
        return changed("vLLM leaves the text out", ours, "the completion ends with it")
    return Outcome("equal", ours)


def model_arguments(given: Given, value: Any) -> Outcome:
    """Keywords of from_pretrained."""
    known = {"dtype", "torch_dtype", "attn_implementation", "revision", "use_cache", "device_map"}
    if foreign := set(value or {}) - known:
        return unsupported(f"expected {', '.join(sorted(known))}, got {', '.join(sorted(foreign))}")
    found = {key.removeprefix("torch_"): one for key, one in (value or {}).items()}
    ours = {} if "revision" not in found else {"model.revision": found["revision"]}
    if "dtype" not in found:
        return Outcome("equal", ours)
    outcome = given.entries["dtype"].rule(given, str(found["dtype"]).removeprefix("torch."))
    return Outcome(outcome.verdict, {**ours, **outcome.ours}, outcome.words)


def rewards(given: Given, value: Any) -> Outcome:
    """Reward functions by name, and their weights."""
    if not value:
        return Outcome("not needed", words="TRL names them in Python: give --reward FILE.py:FUNCTION")
    names = [value] if isinstance(value, str) else list(value)
    factors = given["reward_weights"] or [1.0] * len(names)
    if len(factors) != len(names):
        return unsupported(f"expected as many reward_weights as functions, got {len(factors)} for {len(names)}")
    found, notes = [], []
    for name, weight in zip(names, factors, strict=True):
        module, _, function = name.rpartition(".")
        if module:
            found.append({"name": function, "path": module.replace(".", "/") + ".py", "weight": float(weight)})
        elif name in ("accuracy_reward", "accuracy"):
            found.append({"name": name, "function": "math_verify", "weight": float(weight)})
            notes.append(f"{name} -> math_verify, which reads the column answer and requires a box or an answer tag")
        elif name in ("think_format_reward", "format"):
            found.append({"name": name, "function": "think_format", "weight": float(weight)})
            notes.append(f"{name} -> think_format, which requires the tags of thought and answer once, in order")
        else:
            return unsupported(
                f"{name} is no function that GroupRL has: write it into a file and name its module: my_rewards.short"
            )
    return Outcome("changed" if notes else "equal", {"rewards": found}, "; ".join(notes))


def dataset(given: Given, value: Any) -> Outcome:
    """A file, or a data set of the hub."""
    if value is None:
        return Outcome("not needed", words="TRL names it in Python: give task.path=FILE or hub:OWNER/NAME")
    local = data_kind(value) in DATA_KINDS or str(value).startswith((".", "/"))
    configuration = f":{given['dataset_config']}" if given["dataset_config"] and not local else ""
    path = value if local else f"hub:{value}{configuration}"
    ours = {"task.name": "jsonl", "task.path": path}
    if given["eval_strategy"] != "no" and not local:
        return Outcome("equal", {**ours, "task.arguments.test_path": path}, "the evaluation has the split test")
    return Outcome("changed", ours, HELD_OUT)


def run_name(given: Given, value: Any) -> Outcome:
    """The run's folder; the last part of output_dir where it is not given."""
    name = value or str(given["output_dir"] or "").rstrip("/").rpartition("/")[2]
    clean = folder_name(name)
    return Outcome("equal", {"name": clean} if clean else {})


def trackers(_: Given, value: Any) -> Outcome:
    """The trackers by name."""
    known, others = tracker_names(value)
    if not known:
        return Outcome("not needed", words="metrics.jsonl and the report have every metric")
    return Outcome("changed" if set(others) - {"none"} else "equal", {"trackers.names": known})
