"""Correctness parts of `gpu.py`: each compares GroupRL on the device with a computation that shares no code with it.

A part raises AssertionError with the number that is too large.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from gpu_work import END, TINY, Bench, build, compilations, forget_compilations, learn, learner_of
from shapes import tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.forward.attention import Rule
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.precision import autocast
from grouprl.learner import make_batch
from grouprl.models.verify import plain_logprobs
from grouprl.rollout import NativeEngine, Request
from grouprl.tools.planner import ModelShape
from grouprl.tools.proof.checks import gradients, packed_logprobs, relative
from grouprl.types import Completion, Group, Problem, Sampling, StopReason

# Heads of 64 numbers as in the 0.5B model, few enough words for the tokenizer of the benchmarks.
SMALL = ModelShape("small", 4, 512, 8, 2, 64, 1408, 512, tied=True, biases="qkv")
ENDS = [END, *range(20, 44)]  # about one token in twenty ends a completion
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def require(name: str, found: float, most: float) -> float:
    if not found <= most:
        raise AssertionError(f"{name}: expected at most {most:.3g}, got {found:.3g}")
    return found


def tree_mask(bench: Bench, dtype: str, head_size: int) -> dict[str, float]:
    """Attention over the tree, and its gradients, against a dense mask written out pair by pair, in float64."""
    scale, layouts = (8, 2) if bench.arguments.smoke else (1, 6)
    draws, worst = random.Random(0), 0.0
    forget_compilations()
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
        "compilations": require("compilations for layouts of other sizes", compilations(), 7),
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


def random_groups(shape: ModelShape, *, smoke: bool) -> list[Group]:
    draws, longest = random.Random(1), 12 if smoke else 200

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(draws.randrange(2, shape.vocabulary) for _ in range(draws.randint(2, most)))

    def completion(index: int) -> Completion:
        ids = tokens(longest)
        return Completion(index, ids, (-1.0,) * len(ids), (-1.0,) * len(ids), "", StopReason.LENGTH, 0)

    return [Group(Problem(str(n), ""), tokens(longest), tuple(map(completion, range(4)))) for n in range(4)]


def packed(bench: Bench, dtype: str) -> dict[str, float]:
    """Packed groups against padded rows: log-probs, and the gradient of every weight."""
    shape = TINY if bench.arguments.smoke else SMALL
    model, groups = build(shape, bench.device, spread=True), random_groups(shape, smoke=bench.arguments.smoke)
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


def asked(smoke: bool) -> tuple[list[Request], Sampling]:
    groups = random_groups(TINY if smoke else SMALL, smoke=smoke)
    requests = [Request(one.problem, one.prompt_ids, 3 + 5 * index) for index, one in enumerate(groups)]
    return requests, Sampling(max_tokens=24 if smoke else 300)


def engine_of(bench: Bench, dtype: str) -> tuple[NativeEngine, PreTrainedModel]:
    model = build(TINY if bench.arguments.smoke else SMALL, bench.device, spread=True)
    model.generation_config.eos_token_id = ENDS
    return NativeEngine(model, tokenizer(), seed=0, max_rows=24, dtype=dtype), model


def sampler(bench: Bench, dtype: str) -> dict[str, float]:
    """Log-probs of sampled tokens against padded rows and the learner's packs, before and after an update."""
    engine, model = engine_of(bench, dtype)
    learner = learner_of(bench, model, dtype, rate=1e-3)
    found: dict[str, float] = {}
    for when in ("before", "after"):
        groups = engine.generate(*asked(bench.arguments.smoke))
        sampled = torch.tensor([p for group in groups for one in group.completions for p in one.logprobs])
        with torch.no_grad():
            exact = torch.cat(plain_logprobs(model, groups)).cpu()
            with autocast(bench.device, dtype):
                rounded = torch.cat(plain_logprobs(model, groups)).cpu()
                own = torch.cat(packed_logprobs(model, make_batch(groups, Sampling()), 900)).cpu()
        error, usual = (sampled - exact).abs(), (rounded - exact).abs()
        gap = (sampled - own).abs()
        most = 2e-4 if dtype == "float32" else 2 * float(usual.mean())
        found[f"mean_error_{when}"] = require(f"sampled - padded, {when}", float(error.mean()), most)
        found[f"mean_gap_{when}"] = require(f"sampled - learner's, {when}", float(gap.mean()), most)
        most = 2e-3 if dtype == "float32" else float("inf")
        found[f"largest_gap_{when}"] = require(f"largest of these, {when}", float(gap.max()), most)
        found["tokens"] = len(sampled)
        if when == "before":
            learn(learner, groups)
            engine.load_weights(learner.optimizer.updates)
    return found


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


def graphs(bench: Bench, dtype: str) -> dict[str, float]:
    """Tokens and log-probs by CUDA graphs, and by the same steps in Python, at first and after a change of weights."""
    forms: dict[str, list[list[Group]]] = {}
    for form, context in (("graphs", nullcontext()), ("eager", without_graphs())):
        with context:
            engine, model = engine_of(bench, dtype)
            made = [engine.generate(*asked(bench.arguments.smoke))]
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1.02)
            engine.load_weights(1)
            forms[form] = [*made, engine.generate(*asked(bench.arguments.smoke))]
            if bench.device.type == "cuda" and not (engine._recorded and engine._recorded._replays):
                raise AssertionError("expected recorded decode steps, got none: nothing was compared")
    before, after = ([one.logprobs for one in completions([made])] for made in forms["graphs"])
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


def completions(calls: Sequence[Sequence[Group]]) -> list[Completion]:
    return [one for groups in calls for group in groups for one in group.completions]


def check(bench: Bench) -> None:
    """All correctness parts."""
    dtypes = tuple(DTYPES)
    for dtype, size in (("float32", 64), ("bfloat16", 64), ("bfloat16", 128)):
        bench.part(f"check tree mask, {dtype}, heads of {size}", tree_mask, dtype, size)
    for name, function in (("packed = padded", packed), ("sampler = learner", sampler), ("graphs = eager", graphs)):
        for dtype in dtypes:
            bench.part(f"check {name}, {dtype}", function, dtype)
