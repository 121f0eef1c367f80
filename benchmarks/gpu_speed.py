"""Speed and memory parts of `gpu.py`, against the device's own limits and the planner's memory.

Planner and floors are GroupRL's own (`grouprl.tools.planner`): a decode step reads the weights and the cache once, at
the bandwidth measured here. The learner's rate counts the products of the model and of attention on packed tokens,
three times (twice where an adapter alone learns), not those that are computed again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from gpu_work import TINY_WORK, Bench, Measures, Subject, Work, completion_tokens, learn, peak, prompts, requests

from grouprl.forward.precision import autocast
from grouprl.learner import make_batch
from grouprl.rollout.sampler import draw
from grouprl.run.machine import machine_facts
from grouprl.tools.planner import ModelShape
from grouprl.tools.planner.machine import total_memory
from grouprl.tools.planner.memory import Dtype
from grouprl.tools.planner.time import floor_of_step
from grouprl.tools.proof.checks import packed_logprobs
from grouprl.types import Group, Sampling

ROOM = 0.9  # of the memory; the rest is for the context, the graphs' pool and what the allocator keeps


def device(bench: Bench) -> None:
    """The limits that the other parts are compared with: bandwidth and rate of products in bfloat16."""
    bench.measure("machine", lambda _: {**machine_facts(bench.device)})
    bench.measure("limits", limits)


def limits(bench: Bench) -> Measures:
    """Bandwidth of a large copy and of a large sum, whichever is more, and the rate of large bfloat16 products."""
    count, side = (1 << 20, 128) if bench.tiny else (1 << 31, 8192)
    source = torch.ones(count, dtype=torch.bfloat16, device=bench.device)
    target = torch.empty_like(source)
    copied = min(bench.seconds(lambda: target.copy_(source)) for _ in range(5))
    read = min(bench.seconds(lambda: torch.amax(source)) for _ in range(5))
    a, b = torch.randn(2, side, side, device=bench.device).to(torch.bfloat16)
    product = min(bench.seconds(lambda: [a @ b for _ in range(10)]) for _ in range(5)) / 10
    rates = {"copy_bytes_s": 4 * count / copied, "read_bytes_s": 2 * count / read}
    memory = total_memory(bench.device.type)
    return {**rates, "bytes_s": max(rates.values()), "flops_s": 2 * side**3 / product, "memory": float(memory)}


def speed(bench: Bench) -> None:
    """Sampling and learning of Qwen2.5-0.5B's shapes in bfloat16, beside the limits of the device."""
    works = [TINY_WORK] if bench.tiny else [Work(), Work(group_size=64)]
    subject = Subject(bench, bench.shape(), recompute=False)
    if max(subject.plan(work).peak for work in works) > ROOM * total_memory(bench.device.type):
        subject = Subject(bench, bench.shape())
    for work in works:
        groups: list[Group] = []
        engine = subject.engine(work.rows)
        # The first call records and compiles; of all later calls none does.
        bench.measure(f"sampling, first, G={work.group_size}", sampling, subject, engine, work, groups)
        bench.measure(f"sampling, G={work.group_size}", sampling, subject, engine, work, groups)
        some = groups[: max(1, 16 // work.group_size)]
        bench.measure(f"update, first, G={work.group_size}", update, subject, some, work)
        bench.measure(f"update, G={work.group_size}", update, subject, groups[:], work)
    bench.measure("draw of a decode step", drawing, works[0])


def sampling(bench: Bench, subject: Subject, engine: Any, work: Work, groups: list[Group]) -> Measures:
    """All completions of the work, which replace `groups`; the random model hardly ever ends one by itself."""
    asked, parameters = requests(prompts(work), work.group_size), Sampling(max_tokens=work.max_tokens)
    largest = peak(bench.device)
    seconds = bench.seconds(lambda: groups.__setitem__(slice(None), engine.generate(asked, parameters)))
    floor = floor_of_step(subject.shape, subject.networks, subject.step(work), bench.rates)
    return {
        "seconds": seconds,
        "tokens_s": completion_tokens(groups) / seconds,
        "step_ms": 1000 * seconds / work.max_tokens,
        "floor_step_ms": 1000 * floor.decoding / work.max_tokens,
        "floor_share": (floor.prompts + floor.decoding) / seconds,
        **against_plan(largest(), subject.plan(work).sampling),
    }


def drawing(bench: Bench, work: Work) -> Measures:
    """Milliseconds that draw tokens from the logits of all rows, which the floor does not count."""
    logits = torch.randn(work.rows, bench.shape().vocabulary, device=bench.device).to(torch.bfloat16)
    uniforms = torch.rand(work.rows, device=bench.device).double()
    act = partial(draw, logits, uniforms, Sampling())
    act()
    return {"ms": 100 * bench.seconds(lambda: [act() for _ in range(10)])}


def update(bench: Bench, subject: Subject, groups: Sequence[Group], work: Work) -> Measures:
    """One update from these groups."""
    if not groups:
        raise RuntimeError("expected groups to learn from, got none: sampling failed")
    largest, metrics = peak(bench.device), dict[str, float]()
    seconds = bench.seconds(lambda: metrics.update(learn(subject.learner, groups)))
    return {
        "seconds": seconds,
        "tokens_s": completion_tokens(groups) / seconds,
        "rate_share": flops(subject.shape, groups, adapter=subject.lora_rank is not None) / seconds / bench.rates.flops,
        "sampler_learner_gap": metrics["sampler_learner_gap"],  # largest of all tokens
        "recompute": str(subject.recompute),
        **against_plan(largest(), subject.plan(work).learning),
    }


def flops(shape: ModelShape, groups: Sequence[Group], *, adapter: bool = False) -> float:
    """Floating-point operations that an update needs."""
    lengths = [(len(group.prompt_ids), [len(one) for one in group.completions]) for group in groups]
    read = sum(prompt + sum(own) for prompt, own in lengths)
    predicted = sum(sum(own) for _, own in lengths)
    pairs = sum(prompt**2 / 2 + sum(prompt * n + n**2 / 2 for n in own) for prompt, own in lengths)
    products = 2 * shape.linear_parameters * read + 2 * shape.embedding_parameters * predicted
    attention = 4 * shape.layers * shape.heads * shape.head_size * pairs
    # An adapter alone needs no gradient of the other weights; attention has none, its backward pass is two products.
    return (2 if adapter else 3) * products + 3 * attention


def against_plan(measured: float, planned: int) -> Measures:
    """Peak memory beside the planner's."""
    if not measured:  # a CPU does not count
        return {"planned_gib": planned / (1 << 30)}
    return {
        "peak_gib": measured / (1 << 30),
        "planned_gib": planned / (1 << 30),
        "planned_over_measured": planned / measured,
    }


# Of each row the settings that change what a run holds.
SETTINGS: dict[str, dict[str, Any]] = {
    "all weights": {"recompute": False},
    "all weights, recomputing": {},
    "all weights, moments in bfloat16": {"moments": "bfloat16"},
    "all weights, float32": {"dtype": "float32"},
    "LoRA of rank 16": {"lora_rank": 16, "recompute": False},
}


def memory(bench: Bench) -> None:
    """Peaks of sampling and learning under several settings beside the planner's prediction."""
    for name, settings in SETTINGS.items():
        bench.measure(name, peaks, settings)


def peaks(bench: Bench, settings: dict[str, Any]) -> Measures:
    """The larger peak of a call of the engine and of an update, and the planner's."""
    work = TINY_WORK if bench.tiny else Work(64, 8, 256, 128)
    subject = Subject(bench, bench.shape(), **settings)
    engine, groups = subject.engine(work.rows), list[Group]()
    sampled = sampling(bench, subject, engine, work, groups)
    update(bench, subject, groups, work)  # the first one makes AdamW's moments
    learned = update(bench, subject, groups, work)
    both = {"sampling": sampled, "learning": learned}
    ratios = {name: part["planned_over_measured"] for name, part in both.items() if "planned_over_measured" in part}
    measured = max(float(part.get("peak_gib", 0.0)) for part in both.values())
    return {**ratios, **against_plan(measured * (1 << 30), subject.plan(work).peak)}


def gap(bench: Bench) -> None:
    """How far the learner's log-probs are from the sampler's, before any update."""
    bench.measure("gap in float32", gap_of, "float32")
    bench.measure("gap in bfloat16", gap_of, "bfloat16")


def gap_of(bench: Bench, dtype: Dtype) -> Measures:
    """Nats between a sampled token's log-prob and the learner's."""
    work = TINY_WORK if bench.tiny else Work(64, 8, 256, 128)
    subject, parameters = Subject(bench, bench.shape(), dtype, spread=True), Sampling(max_tokens=work.max_tokens)
    groups = subject.engine(work.rows).generate(requests(prompts(work), work.group_size), parameters)
    sampled_C = torch.tensor([p for group in groups for one in group.completions for p in one.logprobs])
    with torch.no_grad(), autocast(bench.device, dtype):
        learned_C = torch.cat(packed_logprobs(subject.model, make_batch(groups, parameters), 16384)).cpu()
    gaps_C = (learned_C - sampled_C).abs()
    return {"tokens": len(gaps_C), "mean": float(gaps_C.mean()), "largest": float(gaps_C.max())}


def gsm8k(bench: Bench) -> None:
    """Steps of 20 prompts with 8 completions each, of lengths as of GSM8K, at Qwen2.5-0.5B's shapes.

    Such a step takes slime 41.9 s on a GB10 (its pull request 1835, Qwen2.5-0.5B-Instruct).
    """
    problems, longest, most, mean_tokens = (3, 9, 24, 6) if bench.tiny else (20, 180, 1024, 300)
    draws = random.Random(0)
    lengths = [draws.randint(longest // 3, longest) for _ in range(problems)]
    asked = requests([tuple(draws.randrange(2, 512) for _ in range(length)) for length in lengths], 8)
    subject = Subject(bench, bench.shape(), mean_tokens=mean_tokens)
    engine, parameters = subject.engine(8 * problems), Sampling(max_tokens=most)

    def step(_: Bench) -> Measures:
        groups: list[Group] = []
        sampling = bench.seconds(lambda: groups.extend(engine.generate(asked, parameters)))
        learning = bench.seconds(lambda: learn(subject.learner, groups))
        engine.load_weights(subject.learner.optimizer.updates)
        tokens = completion_tokens(groups) / (8 * problems)
        return {"seconds": sampling + learning, "sampling": sampling, "update": learning, "mean_tokens": tokens}

    for name in ("first step", "step"):
        bench.measure(name, step)
