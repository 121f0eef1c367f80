"""Where the time of one step goes, as a picture: torch alone, and with the compiled kernels.

    python benchmarks/profile_step.py [--dtype bfloat16] [--out docs/images/profile_float32.png]

The `small` shape of shapes.py, KL on, one thread. Each form runs in its own process under torch's profiler, whose own
cost is in the numbers; seconds are exclusive, so that they add up.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial, wraps
from typing import Any

import torch
from matplotlib.figure import Figure
from shapes import SHAPES, TINY, Shape, build, prompts, text, tokenizer
from torch.profiler import ProfilerActivity, profile, record_function

from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.forward.attention import NAME
from grouprl.kernels import compiled_weights
from grouprl.kernels.build import library
from grouprl.kernels.compiled_weights import Torch
from grouprl.learner import Learner, Optimizer, assign_credit, make_batch
from grouprl.models.load import frozen_copy
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Problem, RewardOutcome, Sampling

KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::linear", "aten::addmm_", "product of a decode step"),
    "attention": (
        "aten::bmm",
        "aten::_softmax",
        "aten::_softmax_backward_data",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        *("kernel: tree_attention", "kernel: tree_attention_backward"),
        *("kernel: decode_step", "kernel: keep_prompts"),  # a decode step's norms and SwiGLU too
    ),
    "norms and activations": (
        *("kernel: add_norm", "kernel: norm_backward", "kernel: swiglu", "kernel: swiglu_backward"),
        *("aten::silu", "aten::silu_backward", "aten::rsqrt", "aten::pow", "aten::mean"),
    ),
    "log-probs and drawing": (
        *("kernel: logprobs", "kernel: logprobs_backward", "kernel: draw", "kernel: append"),
        *("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::cumsum", "aten::exp", "aten::searchsorted"),
    ),
}
STAGES = ("sampling", "reference", "learning")
KEPT: list[Any] = []  # functions that C calls
COLORS = ("#33658a", "#f26419", "#55a630", "#f6ae2d", "#9a9a9a")


def measured(dtype: str, shape: Shape) -> dict[str, dict[str, float]]:
    """Seconds of each stage by kind."""
    torch.set_num_threads(1)
    kernels = library()
    for name, function in vars(kernels).items() if kernels else ():
        setattr(kernels, name, recorded(f"kernel: {name}", function))
    functions = recorded_products(getattr(torch, dtype)) if kernels else None
    compiled_weights.torch_functions = lambda _: functions  # type: ignore[assignment]
    sampling = Sampling(max_tokens=shape.max_tokens)
    model = build(shape)
    model.set_attn_implementation(NAME)
    algorithm, reference = Algorithm(), frozen_copy(model)
    engine = NativeEngine(model, tokenizer(), seed=0, max_rows=256, dtype=dtype)
    learner = Learner(
        policy=model,
        reference=reference,
        optimizer=Optimizer(model, LearnerConfig()),
        algorithm=algorithm,
        device=torch.device("cpu"),
        dtype=dtype,
        micro_batch_tokens=2048,
    )
    requests = [Request(Problem(str(i), text(p)), p, shape.group_size) for i, p in enumerate(prompts(shape))]
    found: dict[str, dict[str, float]] = {}
    for counted in (False, True):
        groups, found["sampling"] = timed(partial(engine.generate, requests, sampling), counted)
        batch = make_batch(groups, sampling)
        before, found["reference"] = timed(partial(learner.evaluate, batch), counted)
        rewards = [sum(t % 2 for t in c.token_ids) / len(c) for group in groups for c in group.completions]
        outcomes = [RewardOutcome(reward, {}) for reward in rewards]
        credit = assign_credit(outcomes, {}, batch, before, algorithm, kl_coef=0.04)
        _, found["learning"] = timed(partial(learner.learn, batch, credit, before, step=2), counted)
    return found


def recorded(name: str, function: Any) -> Any:
    @wraps(function)
    def call(*arguments: Any) -> Any:
        with record_function(name):
            return function(*arguments)

    return call


def recorded_products(dtype: torch.dtype) -> Torch | None:
    """Torch's C functions, whose products the profiler does not see by itself."""
    plain = compiled_weights.torch_functions(dtype)
    if plain is None:
        return None
    form = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
    form_add = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4, ctypes.c_double, ctypes.c_double)
    kept = form(recorded("product of a decode step", form(plain.multiply)))
    kept_add = form_add(recorded("product of a decode step", form_add(plain.multiply_add)))
    KEPT.extend([kept, kept_add])
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (kept, kept_add)]
    return Torch(plain.create, plain.destroy, *addresses, plain.dtype, plain.device_type)


def timed(work: Any, counted: bool) -> tuple[Any, dict[str, float]]:
    if not counted:
        return work(), {}
    started = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        result = work()
        seconds = time.perf_counter() - started
    kinds: dict[str, float] = defaultdict(float)
    for event in trace.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key in names), None)
        if kind is not None:
            kinds[kind] += event.self_cpu_time_total / 1e6
    return result, {**kinds, "everything else": seconds - sum(kinds.values())}


def draw(forms: dict[str, dict[str, dict[str, float]]], path: str, dtype: str) -> None:
    figure = Figure(figsize=(9, 3.4))
    axes = figure.subplots()
    kinds = [*KINDS, "everything else"]
    labels = [(form, stage) for form in forms for stage in STAGES]
    for row, (form, stage) in enumerate(labels):
        left = 0.0
        for kind, color in zip(kinds, COLORS, strict=True):
            width = forms[form][stage].get(kind, 0.0)
            axes.barh(row, width, left=left, color=color, label=kind if row == 0 else None)
            left += width
        axes.text(left + 0.05, row, f"{left:.2f} s", va="center")
    axes.set_yticks(range(len(labels)), [f"{stage}, {form}" for form, stage in labels])
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds of one step (16 x 8 completions, 4.5M parameters, {dtype}, one thread)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.17), ncols=5, frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--out", default="docs/images/profile_float32.png")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="a tiny shape, here alone, no picture: whether it runs")
    arguments = parser.parse_args()
    shape = TINY if arguments.smoke else SHAPES["small"]
    if arguments.child or arguments.smoke:
        print(json.dumps(measured(arguments.dtype, shape)))
        return
    forms = {}
    for form, kernels in (("torch alone", "off"), ("with kernels", "on")):
        command = [sys.executable, __file__, "--child", "--dtype", arguments.dtype]
        environment = {**os.environ, "GROUPRL_KERNELS": kernels, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        forms[form] = json.loads(result.stdout.splitlines()[-1])
        for stage, kinds in forms[form].items():
            print(form, stage, {kind: round(seconds, 2) for kind, seconds in kinds.items()})
    draw(forms, arguments.out, arguments.dtype)


if __name__ == "__main__":
    main()
