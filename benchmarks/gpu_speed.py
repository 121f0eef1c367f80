"""Speed parts of `gpu.py`: sampling and learning at one size, against the device's own limits and the planner's memory.

Planner and floors are GroupRL's own (`grouprl.tools.planner`): a decode step reads the weights and the cache once, at
the bandwidth measured here. The learner's rate counts the products of the model and of attention on packed tokens,
three times (twice where an adapter alone learns), not those that are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from gpu_correctness import without_graphs
from gpu_work import (
    SIZES,
    TINY,
    Bench,
    Work,
    build,
    compilations,
    forget_compilations,
    learn,
    learner_of,
    peak,
    requests,
)
from shapes import tokenizer
from transformers import PreTrainedModel

from grouprl.config.run import LoraConfig
from grouprl.forward.recompute import recompute_activations
from grouprl.learner import Learner
from grouprl.models.adapters import add_adapter
from grouprl.rollout import NativeEngine
from grouprl.rollout.sampler import draw
from grouprl.tools.planner import MemoryPlan, ModelShape, Networks, StepShape, plan_memory
from grouprl.tools.planner.machine import Rates, total_memory
from grouprl.tools.planner.time import floor_of_step
from grouprl.types import Group, Sampling

WANTED = {"floor_share": 0.60, "rate_share": 0.45, "planned_over_measured": "0.9 to 1.1"}
RANK = 16
ROOM = 0.92  # of the memory; the rest is for the context, the graphs' pool and what the allocator keeps
LEARNED = 2e9  # weights; of a larger model fewer groups are learned from, to save time


def limits(bench: Bench) -> dict[str, float]:
    """Bandwidth of a large copy and of a large sum, whichever is more, and the rate of large bfloat16 products."""
    count, side = (1 << 22, 256) if bench.arguments.smoke else (1 << 31, 8192)
    source = torch.zeros(count, dtype=torch.bfloat16, device=bench.device)
    target = torch.empty_like(source)
    copied = min(bench.seconds(lambda: target.copy_(source)) for _ in range(5))
    read = min(bench.seconds(lambda: torch.amax(source)) for _ in range(5))
    a, b = torch.randn(2, side, side, device=bench.device, dtype=torch.bfloat16)
    product = min(bench.seconds(lambda: [a @ b for _ in range(10)]) for _ in range(5)) / 10
    rates = {"copy_bytes_s": 4 * count / copied, "read_bytes_s": 2 * count / read}
    memory = total_memory(bench.device.type)
    return rates | {"bytes_s": max(rates.values()), "flops_s": 2 * side**3 / product, "memory": float(memory)}


@dataclass
class Subject:
    """A model with its engine and learner; the learner is None where the memory is only enough to sample."""

    shape: ModelShape
    networks: Networks
    recompute: bool
    model: PreTrainedModel
    engine: NativeEngine
    learner: Learner | None

    def step(self, bench: Bench, work: Work) -> StepShape:
        device = "cuda" if bench.device.type == "cuda" else "cpu"
        return StepShape(
            work.problems,
            work.group_size,
            work.prompt_tokens,
            work.max_tokens,
            max_rows=work.rows,
            micro_batch_tokens=bench.arguments.micro_batch_tokens,
            dtype="bfloat16",
            device=device,
            recompute=self.recompute,
        )

    def plan(self, bench: Bench, work: Work) -> MemoryPlan:
        return plan_memory(self.shape, self.networks, self.step(bench, work))


def set_up(bench: Bench, shape: ModelShape, work: Work) -> dict[str, Any]:
    """The model, and the first way of learning whose planned peak fits in the memory."""
    forget_compilations()
    torch.manual_seed(0)
    model = build(shape, bench.device)
    subject = Subject(shape, Networks(reference=False), False, model, engine_of(model, work), None)
    memory, refused = total_memory(bench.device.type), []
    for rank, recompute in ((None, False), (None, True), (RANK, False), (RANK, True)):
        subject = replace(subject, networks=Networks(reference=False, lora_rank=rank), recompute=recompute)
        words = ("all weights" if rank is None else f"LoRA of rank {rank}") + (", recomputing" if recompute else "")
        needed = subject.plan(bench, work).peak
        if needed <= ROOM * memory:
            if rank is not None:
                add_adapter(model, LoraConfig(rank=rank, alpha=2 * rank), seed=0)
            if recompute:
                recompute_activations(model)
            subject.learner = learner_of(bench, model, "bfloat16")
            break
        refused.append(f"{words} needs {gib(needed)}")
    else:
        words = "nothing: it samples only"
    return {"subject": subject, "learns": words, "refused": "; ".join(refused) or "none", "memory": gib(memory)}


def engine_of(model: PreTrainedModel, work: Work) -> NativeEngine:
    return NativeEngine(model, tokenizer(), seed=0, max_rows=work.rows, dtype="bfloat16")


def sampling(bench: Bench, subject: Subject, work: Work) -> dict[str, Any]:
    """All completions of the work; the random model hardly ever ends one by itself."""
    groups: list[Group] = []
    largest = peak(bench.device)
    asked, parameters = requests(work), Sampling(max_tokens=work.max_tokens)
    seconds = bench.seconds(lambda: groups.extend(subject.engine.generate(asked, parameters)))
    measured, tokens = largest(), sum(len(one) for group in groups for one in group.completions)
    limits = bench.found["device"]
    rates = Rates(limits["flops_s"], limits["bytes_s"])
    floor = floor_of_step(subject.shape, subject.networks, subject.step(bench, work), rates)
    return {
        "groups": groups,
        "seconds": seconds,
        "tokens": tokens,
        "tokens_s": tokens / seconds,
        "step_ms": 1000 * seconds / work.max_tokens,
        "floor_step_ms": 1000 * floor.decoding / work.max_tokens,
        "floor_share": (floor.prompts + floor.decoding) / seconds,
        "draw_ms": drawing(bench, subject.shape, work),
        **against_plan(measured, subject.plan(bench, work).sampling),
    }


def drawing(bench: Bench, shape: ModelShape, work: Work) -> float:
    """Milliseconds of a decode step that draw tokens from logits, which the floor does not count."""
    logits = torch.randn(work.rows, shape.vocabulary, device=bench.device).to(torch.bfloat16)
    uniforms = torch.rand(work.rows, device=bench.device, dtype=torch.float64)
    act = partial(draw, logits, uniforms, Sampling())
    act()
    return 100 * bench.seconds(lambda: [act() for _ in range(10)])


def update(bench: Bench, subject: Subject, groups: Sequence[Group], work: Work) -> dict[str, Any]:
    """One update from these groups."""
    assert subject.learner is not None
    largest, metrics = peak(bench.device), dict[str, float]()
    learner = subject.learner
    seconds = bench.seconds(lambda: metrics.update(learn(learner, groups)))
    measured, tokens = largest(), sum(len(one) for group in groups for one in group.completions)
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_s": tokens / seconds,
        "rate_share": flops(subject, groups) / seconds / bench.found["device"]["flops_s"],
        "compilations": compilations(),
        "sampler_learner_gap": metrics["sampler_learner_gap"],  # largest of all tokens
        **against_plan(measured, subject.plan(bench, work).learning),
    }


def flops(subject: Subject, groups: Sequence[Group]) -> float:
    """Floating-point operations that an update needs."""
    shape = subject.shape
    lengths = [(len(group.prompt_ids), [len(one) for one in group.completions]) for group in groups]
    read = sum(prompt + sum(own) for prompt, own in lengths)
    predicted = sum(sum(own) for _, own in lengths)
    pairs = sum(prompt**2 / 2 + sum(prompt * n + n**2 / 2 for n in own) for prompt, own in lengths)
    products = 2 * shape.linear_parameters * read + 2 * shape.embedding_parameters * predicted
    attention = 4 * shape.layers * shape.heads * shape.head_size * pairs
    # An adapter alone needs no gradient of the other weights; attention has none, its backward pass is two products.
    return (3 if subject.networks.lora_rank is None else 2) * products + 3 * attention


def against_plan(measured: float, planned: int) -> dict[str, float]:
    if not measured:  # a CPU does not count
        return {"planned_gib": planned / (1 << 30)}
    return {
        "peak_gib": measured / (1 << 30),
        "planned_gib": planned / (1 << 30),
        "planned_over_measured": planned / measured,
    }


def eager_steps(bench: Bench, subject: Subject, work: Work) -> dict[str, Any]:
    """The same steps launched by Python: what CUDA graphs save."""
    with without_graphs():
        engine = engine_of(subject.model, work)
        asked, parameters = requests(work), Sampling(max_tokens=min(64, work.max_tokens))
        engine.generate(asked, parameters)
        seconds = bench.seconds(lambda: engine.generate(asked, parameters))
    return {"seconds": seconds, "step_ms": 1000 * seconds / parameters.max_tokens}


def measure(bench: Bench, name: str, shape: ModelShape, works: Sequence[Work]) -> None:
    """Everything about GroupRL at one size: each work once to record and compile, and once for the time."""
    made = bench.part(f"{name} model", set_up, shape, works[0])
    if made is None:
        return
    subject: Subject = made.pop("subject")
    for work in works:
        label = f"{name} G={work.group_size}"
        subject.engine = engine_of(subject.model, work)  # its cache fits this work
        first = bench.part(f"{label} first sampling", sampling, subject, work)
        if first is not None and subject.learner is not None:
            some = first["groups"][: max(1, 16 // work.group_size)]
            bench.part(f"{label} first update", update, subject, some, work)
        again = bench.part(f"{label} sampling", sampling, subject, work)
        groups = (again or first or {}).get("groups")
        if groups is None or subject.learner is None:
            continue
        groups = groups[: max(1, round(len(groups) * min(1.0, LEARNED / shape.parameters)))]
        learned = bench.part(f"{label} update", update, subject, groups, work)
        if again is not None and learned is not None and len(groups) == work.problems:
            bench.part(f"{label} step", whole_step, again, learned)
    if shape in (TINY, SIZES["0.5B"]):
        bench.part(f"{name} eager decode steps", eager_steps, subject, works[0])


def whole_step(_: Bench, sampled: dict[str, Any], learned: dict[str, Any]) -> dict[str, float]:
    seconds = sampled["seconds"] + learned["seconds"]
    return {"seconds": seconds, "sampling": sampled["seconds"], "update": learned["seconds"]}


def gib(size: float) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
