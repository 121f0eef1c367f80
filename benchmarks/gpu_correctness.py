"""Correctness parts of `gpu.py`.

`rows` runs the tests of whole runs on a second device on this one. `checks` and `graphs` compare GroupRL on the device
with computations that share no code with it; a measure raises AssertionError with the number that is too large.
"""

from __future__ import annotations

import importlib.util
import os
import random
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpu_work import END, PRETENDED, ROOT, TINY, Bench, Measures, Subject, Work, build, learn, prompts, requests
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh

from grouprl.config.run import LearnerConfig
from grouprl.forward.attention import Rule
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.precision import autocast
from grouprl.learner import Optimizer, make_batch
from grouprl.models.shard import shard_model, whole
from grouprl.models.verify import plain_logprobs
from grouprl.rollout import Request
from grouprl.tools.planner import ModelShape
from grouprl.tools.planner.memory import Dtype
from grouprl.tools.proof.checks import gradients, packed_logprobs, relative
from grouprl.types import Completion, Group, Problem, Sampling, StopReason

# Heads of 64 numbers as in the 0.5B model, few enough words for the tokenizer of the benchmarks.
SMALL = ModelShape("small", 4, 512, 8, 2, 64, 1408, 512, tied=True, biases="qkv")
ENDS = [END, *range(20, 44)]  # about one token in twenty ends a completion
DTYPES: dict[Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def require(name: str, found: float, most: float) -> float:
    if not found <= most:
        raise AssertionError(f"{name}: expected at most {most:.3g}, got {found:.3g}")
    return found


def tree_mask(bench: Bench, dtype: Dtype, head_size: int) -> Measures:
    """Attention over the tree, and its gradients, against a dense mask written out pair by pair, in float64."""
    scale, layouts = (8, 2) if bench.tiny else (1, 6)
    draws, worst = random.Random(0), 0.0
    torch._dynamo.reset()  # torch compiles a function at most 8 times; a run has one model
    counters.clear()
    for _ in range(layouts):
        groups = [(draws.randint(1, 400 // scale), [draws.randint(1, 300 // scale) for _ in range(4)]) for _ in "abc"]
        layout = TreeLayout(tuple(p for p, _ in groups), tuple(tuple(own) for _, own in groups), bench.device)
        mask = dense_mask(groups).to(bench.device)
        shapes = [(len(mask), heads, head_size) for heads in (4, 2, 2)]
        exact = [torch.randn(shape, device=bench.device).to(DTYPES[dtype]).double() for shape in shapes]
        results = []
        for precise, own in ((torch.float64, False), (DTYPES[dtype], True)):
            q, k, v = inputs = [tensor.to(precise, copy=True).requires_grad_() for tensor in exact]
            if own:
                out = layout.attend(0, q, k, v, Rule(head_size**-0.5))
            else:
                q, k, v = (
                    tensor.transpose(0, 1) for tensor in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
                )
                out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1)
            torch.autograd.backward((out * torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)).sum())
            results.append([out.detach(), *(tensor.grad for tensor in inputs if tensor.grad is not None)])
        worst = max(worst, *(relative([a], [b]) for a, b in zip(results[1], results[0], strict=True)))
    most = {"float32": 1e-5, "bfloat16": 1e-2}[dtype]
    return {
        "relative_error": require("relative error of attention or of a gradient", worst, most),
        # torch stops compiling at the ninth time, and would hold the scores of all pairs of tokens.
        "compilations": require("compilations for layouts of other sizes", int(counters["stats"]["unique_graphs"]), 7),
    }


def dense_mask(groups: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
    """[S, S], a loop over the branches of each group: its prompt, then completions that read the prompt and
    themselves."""
    mask = torch.zeros([sum(prompt + sum(own) for prompt, own in groups)] * 2, dtype=torch.bool)
    at = 0
    for prompt, own in groups:
        first = at
        for length in (prompt, *own):
            own_block = mask[at : at + length, at : at + length]
            own_block.copy_(torch.ones_like(own_block).tril())
            if at > first:
                mask[at : at + length, first : first + prompt] = True
            at += length
    return mask


def random_groups(shape: ModelShape, *, tiny: bool) -> list[Group]:
    draws, longest = random.Random(1), 12 if tiny else 200

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(draws.randrange(2, shape.vocabulary) for _ in range(draws.randint(2, most)))

    def completion(index: int) -> Completion:
        ids = tokens(longest)
        return Completion(index, ids, (-1.0,) * len(ids), (-1.0,) * len(ids), "", StopReason.LENGTH, 0)

    return [Group(Problem(str(n), ""), tokens(longest), tuple(map(completion, range(4)))) for n in range(4)]


def packed(bench: Bench, dtype: Dtype) -> Measures:
    """Packed groups against padded rows: log-probs, and the gradient of every weight."""
    shape = TINY if bench.tiny else SMALL
    model, groups = build(shape, bench.device, spread=True), random_groups(shape, tiny=bench.tiny)
    batch = make_batch(groups, Sampling())

    def computed(own: bool, precise: str) -> tuple[list[Tensor], list[Tensor]]:
        with autocast(bench.device, precise):
            rows = packed_logprobs(model, batch, 900) if own else plain_logprobs(model, groups)
        return [row.detach() for row in rows], gradients(model, rows)

    exact, found = computed(False, "float32"), computed(True, dtype)
    gaps = [relative(mine, theirs) for mine, theirs in zip(found, exact, strict=True)]
    if dtype == "float32":
        most = [1e-4, 1e-3]
    else:  # bfloat16 rounds the padded rows too
        most = [1.5 * relative(a, b) for a, b in zip(computed(False, dtype), exact, strict=True)]
    return {
        "logprob_error": require("relative error of log-probs", gaps[0], most[0]),
        "gradient_error": require("relative error of gradients", gaps[1], most[1]),
    }


def asked(tiny: bool) -> tuple[list[Request], Sampling]:
    groups = random_groups(TINY if tiny else SMALL, tiny=tiny)
    requests = [Request(one.problem, one.prompt_ids, 3 + 5 * index) for index, one in enumerate(groups)]
    return requests, Sampling(max_tokens=24 if tiny else 300)


def subject_of(bench: Bench, dtype: Dtype, rate: float = 1e-6) -> Subject:
    shape = TINY if bench.tiny else SMALL
    subject = Subject(bench, shape, dtype, recompute=False, spread=True, rate=rate)
    subject.model.generation_config.eos_token_id = ENDS
    return subject


def sampler(bench: Bench, dtype: Dtype) -> Measures:
    """Log-probs of sampled tokens against padded rows and the learner's packs, before and after an update."""
    subject = subject_of(bench, dtype, rate=1e-3)
    model, engine = subject.model, subject.engine(24)
    measures: Measures = {}
    for when in ("before", "after"):
        groups = engine.generate(*asked(bench.tiny))
        sampled = torch.tensor([p for group in groups for one in group.completions for p in one.logprobs])
        with torch.no_grad():
            exact = torch.cat(plain_logprobs(model, groups)).cpu()
            with autocast(bench.device, dtype):
                rounded = torch.cat(plain_logprobs(model, groups)).cpu()
                learned = torch.cat(packed_logprobs(model, make_batch(groups, Sampling()), 900)).cpu()
        error, usual = (sampled - exact).abs(), (rounded - exact).abs()
        gap = (sampled - learned).abs()
        most = 2e-4 if dtype == "float32" else 2 * float(usual.mean())
        measures[f"mean_error_{when}"] = require(f"sampled - padded, {when}", float(error.mean()), most)
        measures[f"mean_gap_{when}"] = require(f"sampled - learner's, {when}", float(gap.mean()), most)
        most = 2e-3 if dtype == "float32" else float("inf")
        measures[f"largest_gap_{when}"] = require(f"largest of these, {when}", float(gap.max()), most)
        measures["tokens"] = len(sampled)
        if when == "before":
            learn(subject.learner, groups)
            engine.load_weights(subject.learner.optimizer.updates)
    return measures


class Eager:
    """In the place of CUDA graphs: the same steps at the same sizes, launched by Python."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def warm_up(self, function: Any) -> None:
        function()

    def record(self, function: Any) -> Any:
        return function


def without_graphs() -> AbstractContextManager[object]:
    return patch("grouprl.lean.recorders.CudaGraphs", Eager)


def equal_steps(bench: Bench, dtype: Dtype) -> Measures:
    """Tokens and log-probs by CUDA graphs, and by the same steps in Python, at first and after a change of weights."""
    forms: dict[str, list[list[Group]]] = {}
    for form, context in (("graphs", nullcontext()), ("eager", without_graphs())):
        with context:
            subject = subject_of(bench, dtype)
            engine = subject.engine(24)
            calls = [engine.generate(*asked(bench.tiny))]
            with torch.no_grad():
                for weight in subject.model.parameters():
                    weight.mul_(1.02)
            engine.load_weights(1)
            forms[form] = [*calls, engine.generate(*asked(bench.tiny))]
            if bench.device.type == "cuda" and not (engine._recorded and engine._recorded._replays):
                raise AssertionError("expected recorded decode steps, got none: nothing was compared")
    before, after = ([one.logprobs for one in completions([groups])] for groups in forms["graphs"])
    if before == after:
        raise AssertionError("expected other log-probs from other weights, got the same")
    same, total, gap = 0, 0, 0.0
    for one, other in zip(completions(forms["graphs"]), completions(forms["eager"]), strict=True):
        total, same = total + 1, same + (one.token_ids == other.token_ids)
        for a, b, mine, theirs in zip(one.token_ids, other.token_ids, one.logprobs, other.logprobs, strict=False):
            gap = max(gap, abs(mine - theirs)) if a == b else gap
            if a != b:
                break
    most = {"float32": (0.0, 2e-4), "bfloat16": (0.1, 0.05)}[dtype]
    return {
        "completions": total,
        "other_share": require("share of completions that differ", 1 - same / total, most[0]),
        "logprob_gap": require("difference of log-probs", gap, most[1]),
    }


def step_times(bench: Bench) -> Measures:
    """Milliseconds of a decode step by CUDA graphs and in Python."""
    subject = Subject(bench, bench.shape())
    work = Work(8, 4, 16, 8) if bench.tiny else Work(64, 8, 256, 64)
    measures: Measures = {}
    for form, context in (("graphs_ms", nullcontext()), ("eager_ms", without_graphs())):
        with context:
            call = partial(
                subject.engine(work.rows).generate,
                requests(prompts(work), work.group_size),
                Sampling(max_tokens=work.max_tokens),
            )
            call()  # records
            measures[form] = 1000 * bench.seconds(call) / work.max_tokens
    measures["times_as_fast"] = float(measures["eager_ms"]) / float(measures["graphs_ms"])
    return measures


def graphs(bench: Bench) -> None:
    """Decode steps by CUDA graphs beside the same steps in Python: the same numbers, and their times."""
    for dtype in DTYPES:
        bench.measure(f"graphs = eager, {dtype}", equal_steps, dtype)
    bench.measure("decode step", step_times)


def completions(calls: Sequence[Sequence[Group]]) -> list[Completion]:
    return [one for groups in calls for group in groups for one in group.completions]


def sharded(bench: Bench) -> Measures:
    """The gradient of a model that FSDP2 has sharded over one rank, against that of the same model."""
    if bench.device.type == PRETENDED:
        return {"skipped": "torch shards no tensors of a pretended device"}
    shape = TINY if bench.tiny else SMALL
    groups = random_groups(shape, tiny=bench.tiny)
    batch = make_batch(groups, Sampling())
    whole_model, model = (build(shape, bench.device, spread=True) for _ in range(2))
    found: list[list[Tensor]] = []
    with tempfile.TemporaryDirectory() as folder:
        backend = "cpu:gloo,cuda:nccl" if bench.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            shard_model(model, init_device_mesh(bench.device.type, (1,)), "float32")
            for each in (whole_model, model):
                rows = packed_logprobs(each, batch, 1 << 30)
                parts = [(row * torch.linspace(-1, 1, len(row), device=row.device)).sum() for row in rows]
                torch.autograd.backward(torch.stack(parts).sum())
                found.append([whole(weight.grad) for weight in each.parameters() if weight.grad is not None])
        finally:
            dist.destroy_process_group()
    return {"gradient_error": require("relative error of gradients", relative(found[1], found[0]), 1e-5)}


MOMENTS = {
    "bfloat16": LearnerConfig(learning_rate=1e-3, moments="bfloat16"),
    "8bit": LearnerConfig(learning_rate=1e-3, moments="8bit"),
    "8bit, paged": LearnerConfig(learning_rate=1e-3, moments="8bit", paged=True),
    "float32, paged": LearnerConfig(learning_rate=1e-3, paged=True),
}


def moments(bench: Bench, name: str) -> Measures:
    """Ten updates with lean moments, half of them after the state went through a copy, against torch's AdamW."""
    if name != "bfloat16" and importlib.util.find_spec("bitsandbytes") is None:
        return {"skipped": "bitsandbytes is not here"}
    if bench.device.type != "cuda" and name != "bfloat16":
        return {"skipped": "bitsandbytes keeps these moments on a GPU"}
    results: list[list[Tensor]] = []
    for config in (LearnerConfig(learning_rate=1e-3), MOMENTS[name]):
        torch.manual_seed(0)
        layer = nn.Linear(256, 256).to(bench.device)
        first = [weight.detach().clone() for weight in layer.parameters()]
        optimizer = Optimizer(layer, config)
        for number in range(10):
            if number == 5:
                state, optimizer = optimizer.state(), Optimizer(layer, config)
                optimizer.load_state(state, 5)
            generator = torch.Generator().manual_seed(number)
            inputs = torch.randn(32, 256, generator=generator).to(bench.device)
            (layer(inputs) - inputs).square().mean().backward()
            optimizer.step()
        results.append([weight.detach() - begin for weight, begin in zip(layer.parameters(), first, strict=True)])
    most = 1e-4 if name.startswith("float32") else 0.1
    return {"update_error": require("relative error of ten updates", relative(results[1], results[0]), most)}


def four_bits(bench: Bench) -> Measures:
    """Log-probs of a model whose weights are in NF4, against the same weights dequantized."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return {"skipped": "bitsandbytes is not here"}
    if bench.device.type == PRETENDED:
        return {"skipped": "bitsandbytes replaces the data of tensors, which a pretended device refuses"}
    from bitsandbytes.functional import dequantize_4bit

    from grouprl.lean.four_bits import quantize_weights

    shape = TINY if bench.tiny else SMALL
    batch = make_batch(random_groups(shape, tiny=bench.tiny), Sampling())
    small, exact = build(shape, bench.device, spread=True), build(shape, bench.device, spread=True)
    quantize_weights(small, bench.device)
    for name, layer in small.get_decoder().named_modules():
        state = getattr(getattr(layer, "weight", None), "quant_state", None)
        if state is not None:
            exact.get_decoder().get_submodule(name).weight.data.copy_(dequantize_4bit(layer.weight.data, state))
    with torch.no_grad(), autocast(bench.device, "bfloat16"):
        rows = [torch.cat(packed_logprobs(model, batch, 900)) for model in (small, exact)]
    return {"logprob_error": require("relative error of log-probs", relative(rows[:1], rows[1:]), 1e-2)}


def checks(bench: Bench) -> None:
    """Parts of a run against computations that share no code with them."""
    heads: tuple[tuple[Dtype, int], ...] = (("float32", 64), ("bfloat16", 64), ("bfloat16", 128))
    for dtype, size in heads:
        bench.measure(f"tree mask, {dtype}, heads of {size}", tree_mask, dtype, size)
    for name, function in (("packed = padded", packed), ("sampler = learner", sampler)):
        for dtype in DTYPES:
            bench.measure(f"{name}, {dtype}", function, dtype)
    bench.measure("sharded = whole", sharded)
    for name in MOMENTS:
        bench.measure(f"moments in {name}", moments, name)
    bench.measure("weights in NF4", four_bits)


def rows(bench: Bench) -> None:
    """The tests of whole runs on a second device, on this one: each row of them is a measure."""
    import pytest

    class Reporter:
        def pytest_runtest_logreport(self, report: Any) -> None:
            name = report.nodeid.rpartition("::")[2].removeprefix("test_")
            if report.when == "call" or report.outcome != "passed":
                took: Measures = {"seconds": report.duration}
                if report.failed:
                    lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
                    took = {"failed": " ".join(" ".join(lines).split())[:600] or report.when}
                bench.keep(name, {"skipped": str(report.longrepr[2])} if report.skipped else took)

    if bench.device.type == "cpu":
        bench.keep("rows", {"skipped": "they compare a device with the CPU"})
        return
    os.environ["GROUPRL_SECOND_DEVICE"] = bench.device.type
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # in each of the processes
    file = ROOT / "tests" / "run" / "second_device.py"
    options = [f"--basetemp={bench.folder / 'rows'}", "-p", "no:cacheprovider", str(file)]
    if bench.tiny:
        options += ["-k", "lora or is_refused"]
    elif importlib.util.find_spec("xdist"):  # processes beside each other, each with a context on the GPU
        options += ["-n", str(min(6, (os.cpu_count() or 2) // 2))]
    pytest.main(options, plugins=[Reporter()])
    if not bench.measures:
        raise RuntimeError("expected rows, got none: see the output of pytest above")
