"""Completion tokens per second of GroupRL's engine, with and without compiled kernels, and of transformers `generate`.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_sampling.py [--smoke] [--shapes small wide]

16 prompts (wide: 8) x 8 completions of up to 96 tokens (`shapes.py`), temperature 1. `generate` gets one batch of all
rows, sdpa attention, nothing truncated; in bfloat16 it is tried on bfloat16 weights and under autocast, and the faster
one is the peer. Each draws completions of its own; what counts is tokens that belong to a completion.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from floor import DTYPES, sampling_floor
from shapes import END, PAD, SHAPES, Shape, architecture, build, prompts, tokenizer
from speed_rows import Row, Worker, answer_lines, faster, finish, in_turns, say, section_parser, timed
from speed_work import CPU, requests
from transformers import LlamaForCausalLM

from grouprl.forward.precision import autocast
from grouprl.rollout import NativeEngine
from grouprl.types import Sampling

SECONDS_PER_CASE = 20.0  # two rounds in any case


@dataclass(frozen=True)
class Sampled:
    """One call: how long it took, and how long the completions are."""

    seconds: float
    lengths: Sequence[int]

    @property
    def rate(self) -> float:
        return sum(self.lengths) / self.seconds


def shape_of(name: str, smoke: bool) -> Shape:
    shape = replace(SHAPES[name], problems=8) if name == "wide" else SHAPES[name]
    return replace(shape, problems=2, max_tokens=12) if smoke else shape


def short_of(shape: Shape) -> Shape:
    """For a warm-up."""
    return replace(shape, max_tokens=min(16, shape.max_tokens))


@cache
def policy(shape: Shape) -> LlamaForCausalLM:
    model = build(shape)
    model.set_attn_implementation("grouprl")
    return model


@cache
def peer_policy(shape: Shape, weights: str) -> LlamaForCausalLM:
    model = build(shape).to(DTYPES[weights])
    model.set_attn_implementation("sdpa")
    return model


def grouprl(shape: Shape, dtype: str, number: int) -> Sampled:
    """Another number, other completions."""
    engine = NativeEngine(policy(architecture(shape)), tokenizer(shape.vocabulary), seed=0, max_rows=256, dtype=dtype)
    asked = requests(shape, f"round {number}")
    seconds, groups = timed(lambda: engine.generate(asked, Sampling(max_tokens=shape.max_tokens)))
    return Sampled(seconds, [len(completion) for group in groups for completion in group.completions])


@torch.no_grad()
def generate(shape: Shape, weights: str, computed_in: str, number: int) -> Sampled:
    """transformers' own; `computed_in` another dtype than the weights' is autocast."""
    model = peer_policy(architecture(shape), weights)
    input_ids = torch.tensor([prompt for prompt in prompts(shape) for _ in range(shape.group_size)])
    torch.manual_seed(number)
    with autocast(CPU, computed_in if computed_in != weights else "float32"), warnings.catch_warnings(action="ignore"):
        seconds, made = timed(
            lambda: model.generate(
                input_ids=input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=shape.max_tokens,
                do_sample=True,
                top_k=0,
                pad_token_id=PAD,
                eos_token_id=END,
            )
        )
    ended_NT = made[:, shape.prompt_tokens :] == END
    whole = ended_NT.shape[1]
    return Sampled(seconds, [int(row.argmax()) + 1 if row.any() else whole for row in ended_NT.int()])


def fastest_generate(shape: Shape, dtype: str, short: Shape) -> tuple[str, Callable[[int], Sampled]]:
    """The form of `generate` that a race with the short shape finds to be the faster one, warmed up by it."""
    forms = {"generate": lambda number: generate(shape, dtype, dtype, number)}
    if dtype == "bfloat16":
        forms["generate, autocast"] = lambda number: generate(shape, "float32", dtype, number)
    rates = {}
    for name in forms:
        weights = "float32" if "autocast" in name else dtype
        generate(short, weights, dtype, 0)
        rates[name] = generate(short, weights, dtype, 1).rate
    name = max(rates, key=lambda form: rates[form])
    return name, forms[name]


def compare(name: str, dtype: str, plain: Worker, *, smoke: bool) -> tuple[list[Row], dict[str, Any]]:
    """GroupRL with kernels, GroupRL without, `generate`, in turns."""
    shape = shape_of(name, smoke)
    peer_name, peer = fastest_generate(shape, dtype, short_of(shape))

    def without_kernels(number: int) -> Sampled:
        return Sampled(**plain.ask({"name": name, "dtype": dtype, "number": number, "smoke": smoke}))

    grouprl(short_of(shape), dtype, -1)
    plain.ask({"name": name, "dtype": dtype, "number": -1, "smoke": True})
    found = in_turns(
        {"compiled": lambda number: grouprl(shape, dtype, number), "plain": without_kernels, peer_name: peer},
        rounds=2 if smoke else 4,
        at_most=SECONDS_PER_CASE,
    )
    rates = {form: statistics.median(one.rate for one in calls) for form, calls in found.items()}
    rows = []
    for form, label in (("compiled", f"{name}, {dtype}"), ("plain", f"{name}, {dtype}, kernels off")):
        floors = [sum(one.lengths) / sampling_floor(shape, one.lengths, dtype) for one in found[form]]
        rows.append(faster(label, "tokens/s", rates[form], rates[peer_name], peer_name, statistics.median(floors)))
    say(", ".join(f"{row.name}: {row.ours:,.0f} tokens/s, {row.ratio:.2f} x {peer_name}" for row in rows))
    return rows, {form: [[one.seconds, sum(one.lengths)] for one in calls] for form, calls in found.items()}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    shape = shape_of(question["name"], question["smoke"])
    one = grouprl(shape, question["dtype"], question["number"])
    return {"seconds": one.seconds, "lengths": one.lengths}


def main() -> None:
    parser = section_parser(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES))
    parser.add_argument("--answer", action="store_true", help="measure what is asked for on the standard input")
    given = parser.parse_args()
    if given.answer:
        answer_lines(answer)
        return
    rows, calls, names = [], {}, given.shapes or (["small"] if given.smoke else SHAPES)
    with Worker("speed_sampling.py", "--answer", kernels=False) as plain:
        for name in names:
            for dtype in DTYPES:
                more, calls[f"{name}, {dtype}"] = compare(name, dtype, plain, smoke=given.smoke)
                rows += more
    finish(rows, seconds_and_tokens=calls)


if __name__ == "__main__":
    main()
