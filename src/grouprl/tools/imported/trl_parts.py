"""What TRL's keys mean that name the parts of a run: model, rewards, data, trackers, vLLM."""

from __future__ import annotations

from typing import Any

from grouprl.files import DATA_KINDS, data_kind
from grouprl.tools.imported.table import Given, Outcome, changed, folder_name, tracker_names, unsupported

HELD_OUT = (
    "every row -> 90 % of them: 10 % are held out, unless task.arguments.test_path names a file for the evaluation"
)


def bfloat16(given: Given, value: Any) -> Outcome:
    """Autocast; TRL has it on where neither bf16 nor fp16 is given."""
    if given["fp16"]:
        return Outcome("not needed", words="fp16 applies")
    on = value is None or value
    words = "TRL's default: products in bfloat16, weights in float32" if value is None else ""
    return Outcome("equal", {"model.dtype": "bfloat16" if on else "float32"}, words)


def weights(given: Given, value: Any) -> Outcome:
    """The dtype of the policy's weights."""
    if given["load_in_4bit"]:
        return Outcome("not needed", words="model.weights=nf4 has bfloat16 beside its 4 bits")
    if value in ("float32", "bfloat16"):
        return Outcome("equal", {"model.weights": value})
    if value == "auto":
        return unsupported("the dtype of the checkpoint, which the file does not say: write bfloat16 or float32")
    return unsupported("expected float32 or bfloat16")


def four_bits(given: Given, value: Any) -> Outcome:
    """QLoRA."""
    if not value:
        return Outcome("equal")
    if not given["use_peft"] or given["bnb_4bit_quant_type"] != "nf4":
        return unsupported("expected use_peft and nf4")
    return Outcome("changed", {"model.weights": "nf4"}, "scales are quantized twice, other matrices are bfloat16")


def model_arguments(given: Given, value: Any) -> Outcome:
    """Keywords of from_pretrained."""
    known = {"dtype", "torch_dtype", "attn_implementation", "revision", "use_cache", "device_map"}
    if foreign := set(value or {}) - known:
        return unsupported(f"expected {', '.join(sorted(known))}, got {', '.join(sorted(foreign))}")
    found = {key.removeprefix("torch_"): one for key, one in (value or {}).items()}
    ours = {} if "revision" not in found else {"model.revision": found["revision"]}
    if "dtype" not in found:
        return Outcome("equal", ours)
    outcome = weights(given, str(found["dtype"]).removeprefix("torch."))
    return Outcome(outcome.verdict, {**ours, **outcome.ours}, outcome.words)


def lora(key: str, given: Given, value: Any) -> Outcome:
    """A setting of the adapter, where there is one."""
    if not given["use_peft"]:
        return Outcome("not needed", words="no adapter without use_peft")
    if key == "targets":
        value = "all-linear" if value is None else value
        words = "TRL uses PEFT's list for the model" if value == "all-linear" else ""
        return Outcome("changed" if words else "equal", {"model.lora.targets": value}, words)
    if key == "dropout":
        return Outcome("changed" if value else "equal", words=f"{value} -> 0: no dropout, so sampler and learner agree")
    return Outcome("equal", {f"model.lora.{key}": value})


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


def reward_weights(given: Given, value: Any) -> Outcome:
    """The weights of the functions."""
    if value is None or given["reward_funcs"]:
        return Outcome("equal", words="" if value is None else "with reward_funcs")
    return unsupported("TRL names them in Python: give --reward FILE.py:FUNCTION=WEIGHT and allow this")


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


def prompt_column(_: Given, value: Any) -> Outcome:
    """open-r1's column of the prompts, which are texts."""
    ours = {"task.arguments.prompt_column": value, "task.arguments.messages": True}
    return Outcome("equal", {} if value is None else ours)


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


def tracker_project(given: Given, value: Any) -> Outcome:
    """The project of the trackers, where the file names it; TRL's default is its maker's."""
    is_named = "project" in given.named
    return (
        Outcome("equal", {"trackers.project": value}) if is_named else Outcome("not needed", words="trackers.project")
    )


def vllm(given: Given, value: Any) -> Outcome:
    """vLLM as sampler: a server; inside the trainer's process there is GroupRL's own engine."""
    if not value:
        return Outcome("equal", words="the native engine")
    if given["vllm_mode"] != "server":
        return changed("vLLM in the process", {"rollout.engine.name": "native"}, "the native engine shares the weights")
    host = "127.0.0.1" if given["vllm_server_host"] == "0.0.0.0" else given["vllm_server_host"]
    address = given["vllm_server_base_url"] or f"http://{host}:{given['vllm_server_port']}"
    ours = {"rollout.engine.name": "vllm", "rollout.engine.address": address}
    return changed("trl vllm-serve", ours, "start `vllm serve` as in docs/scale.md")


def correction(given: Given, value: Any) -> Outcome:
    """The weights for a sampler whose log-probs differ."""
    if not given["use_vllm"] or given["vllm_mode"] != "server" or not given["vllm_importance_sampling_correction"]:
        return Outcome("not needed", words="no correction: the native engine has the learner's log-probs")
    level, _, kind = str(value).partition("_")
    cap, floor = given["vllm_importance_sampling_clip_max"], given["vllm_importance_sampling_clip_min"]
    if level not in ("token", "sequence") or kind not in ("truncate", "mask") or cap is None:
        return unsupported("expected token_ or sequence_ with mask or truncate, and a clip_max")
    if kind == "truncate" and floor:
        return unsupported("expected no clip_min with truncate")
    ours = {"algorithm.correction_kind": kind, "algorithm.correction_level": level, "algorithm.correction_cap": cap}
    return Outcome("equal", {**ours, **({"algorithm.correction_floor": floor or 0.0} if kind == "mask" else {})})
