"""What a GPU can do and what is made of it: decoding with and without CUDA graphs, learning, peers on the same work.

    python benchmarks/gpu.py [--json PATH] [--sizes 0.5B 1.5B] [--seconds 520]
    ... --smoke                 the same course with toy sizes on the CPU, to see that it runs

Models in the shapes of Qwen2.5 with random weights, nothing is downloaded; 64 prompts of 256 tokens, 8 completions each
of 1,024, bfloat16. A part that fails says so and the rest goes on; parts that would begin after --seconds are left out.
`floor` is the time in which the device reads the weights of a step and the keys and values that its rows see, once, at
the bandwidth measured here; `rate` of the learner counts the products of the model on packed tokens, three times.
It has only been run as `--smoke` so far.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_peers import transformers_generate, trl_step
from gpu_work import END, SIZES, TINY, TINY_WORK, Bench, Size, Work, build, peak, prompts
from shapes import tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.learner import Learner, Optimizer, assign_credit, make_batch
from grouprl.models.precision import autocast
from grouprl.rollout.cache import CacheShape
from grouprl.rollout.decoding import Decoding, Finished, Unit
from grouprl.rollout.forward import Forward, ModuleForward
from grouprl.rollout.recorders import CudaGraphs
from grouprl.rollout.rows import Rows
from grouprl.rollout.sampler import row_key
from grouprl.run.machine import machine_facts
from grouprl.step import token_loss
from grouprl.types import Group, Problem, RewardOutcome, Sampling

FORMS = ("graphs", "no graphs", "modules")


def limits(bench: Bench) -> dict[str, float]:
    """Bandwidth of a large copy and of a large sum, whichever is more, and the rate of large bfloat16 products."""
    count, side = (1 << 22, 256) if bench.arguments.smoke else (1 << 31, 8192)
    source = torch.zeros(count, dtype=torch.bfloat16, device=bench.device)
    target = torch.empty_like(source)
    copied = min(bench.seconds(lambda: target.copy_(source)) for _ in range(5))
    read = min(bench.seconds(lambda: torch.amax(source)) for _ in range(5))
    a, b = torch.randn(2, side, side, device=bench.device, dtype=torch.bfloat16)
    product = min(bench.seconds(lambda: [a @ b for _ in range(10)]) for _ in range(5)) / 10
    figures = {"copy_bytes_s": 4 * count / copied, "read_bytes_s": 2 * count / read}
    return figures | {"bytes_s": max(figures.values()), "flops_s": 2 * side**3 / product}


def units(work: Work, size: Size) -> list[Unit]:
    return [
        Unit(index, prompt, tuple(row_key(0, "", str(index), place) for place in range(work.group_size)), 0)
        for index, prompt in enumerate(prompts(work, size))
    ]


def forward_of(form: str, model: PreTrainedModel, size: Size, work: Work, tokens: int) -> Forward:
    shape = CacheShape(
        size.layers, size.kv_heads, size.head_size, work.problems, work.rows, work.prompt_tokens, own_tokens=tokens
    )
    if form == "modules":
        return ModuleForward(model, shape, torch.bfloat16)
    device = model.device
    recorder = CudaGraphs(device) if form == "graphs" and device.type == "cuda" else NoRecorder()
    return ModuleForward(model, shape, torch.bfloat16, recorder)


class NoRecorder:
    """A recorder that calls the function itself every time: the shapes of the graphs, in Python."""

    def warm_up(self, function: Callable[[], None]) -> None:
        function()

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        return function


class Timed:
    """A `Forward` whose steps are waited for and timed."""

    def __init__(self, forward: Forward, bench: Bench) -> None:
        self._forward, self._bench = forward, bench
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward, name)

    def decode_step(self, rows: Rows, members: int, lengths: Sequence[int]) -> Tensor:
        made: list[Tensor] = []
        self.seconds += self._bench.seconds(lambda: made.append(self._forward.decode_step(rows, members, lengths)))
        return made[0]


@torch.no_grad()
def decode(bench: Bench, forward: Forward, size: Size, work: Work, tokens: int) -> dict[str, Any]:
    """All completions of the work, of this many tokens; the random model hardly ever ends one by itself."""
    done: Finished = []
    largest = peak(bench.device)

    def run() -> None:
        with autocast(bench.device, "bfloat16"):
            decoding = Decoding(
                forward, tokenizer(), units(work, size), Sampling(max_tokens=tokens), [END], bench.device, version=0
            )
            while decoding.going:
                done.extend(decoding.advance())

    seconds = bench.seconds(run)
    made = sum(len(completion) for _, completion in done)
    return {"seconds": seconds, "tokens": made, "tokens_s": made / seconds, "peak_gib": largest(), "rows": done}


def floor_seconds(bench: Bench, size: Size, work: Work, tokens: int) -> float:
    """Reading all that the steps must read, once a step."""
    a_token = 2 * 2 * size.layers * size.kv_heads * size.head_size  # bytes of its keys and values
    seen = work.problems * work.prompt_tokens + work.rows * tokens / 2
    a_step = 2 * (size.products + size.embedding) + a_token * seen
    bytes_s: float = bench.found["device"]["bytes_s"]
    return (tokens - 1) * a_step / bytes_s  # the first token comes from the prompts


def decoding(bench: Bench, form: str, model: PreTrainedModel, size: Size, work: Work, tokens: int) -> dict[str, Any]:
    """A warm-up, the whole of it as it is, and once more with the forward pass timed apart from the drawing."""
    forward = forward_of(form, model, size, work, tokens)
    warm = decode(bench, forward, size, work, min(8, tokens) if form != "graphs" else tokens)
    made = decode(bench, forward, size, work, tokens)
    timed = Timed(forward, bench)
    parts = decode(bench, timed, size, work, work.short_tokens)
    floor, steps = floor_seconds(bench, size, work, tokens), work.short_tokens - 1
    return made | {
        "first_seconds": warm["seconds"],  # of graphs: with their recording
        "floor_share": floor / made["seconds"],
        "forward_ms": 1000 * timed.seconds / steps,
        "rest_ms": 1000 * (parts["seconds"] - timed.seconds) / steps,
        "forward_floor_ms": 1000 * floor_seconds(bench, size, work, work.short_tokens) / steps,
    }


def groups_of(finished: Finished, asked: Sequence[Unit]) -> list[Group]:
    """The groups of finished completions; of every two completions one is rewarded, see `learn`."""
    groups = []
    for index, unit in enumerate(asked):
        own = sorted((one for request, one in finished if request == index), key=lambda one: one.index)
        groups.append(Group(Problem(str(index), ""), unit.prompt_ids, tuple(own)))
    return groups


def learner_of(bench: Bench, model: PreTrainedModel) -> Learner:
    algorithm = Algorithm(kl=None)
    return Learner(
        policy=model,
        reference=None,
        optimizer=Optimizer(model, LearnerConfig(learning_rate=1e-6)),
        algorithm=algorithm,
        device=bench.device,
        dtype="bfloat16",
        micro_batch_tokens=bench.arguments.micro_batch_tokens,
    )


def learn(learner: Learner, groups: Sequence[Group]) -> dict[str, float]:
    """One update, without a reference."""
    batch = make_batch(groups, Sampling())
    outcomes = [RewardOutcome(float(one.index % 2), {"odd": 1.0}) for group in groups for one in group.completions]
    before = learner.evaluate(batch)
    credit = assign_credit(outcomes, {"odd": 1.0}, batch, before, learner.algorithm, kl_coef=0.0)
    return learner.learn(batch, credit, before, partial(token_loss, learner), step=2).metrics


def learning(bench: Bench, learner: Learner, size: Size, groups: Sequence[Group]) -> dict[str, Any]:
    """An update after one to warm up (which compiles the attention)."""
    largest = peak(bench.device)
    first = bench.seconds(lambda: learn(learner, groups))
    figures: list[dict[str, float]] = []
    seconds = bench.seconds(lambda: figures.append(learn(learner, groups)))
    lengths = [(len(group.prompt_ids), [len(one) for one in group.completions]) for group in groups]
    read = sum(prompt + sum(own) for prompt, own in lengths)
    predicted = sum(sum(own) for _, own in lengths)
    pairs = sum(prompt**2 / 2 + sum(prompt * n + n**2 / 2 for n in own) for prompt, own in lengths)
    flops = 3 * (2 * size.products * read + 2 * size.embedding * predicted + 4 * size.layers * size.hidden * pairs)
    return {
        "seconds": seconds,
        "first_seconds": first,
        "tokens": predicted,
        "tokens_s": predicted / seconds,
        "rate_share": flops / seconds / bench.found["device"]["flops_s"],
        "peak_gib": largest(),
        "sampler_learner_gap": figures[0]["sampler_learner_gap"],  # largest of all tokens, after one update of 1e-6
    }


def whole_step(bench: Bench, learner: Learner, size: Size, work: Work) -> dict[str, Any]:
    """Short completions of every prompt and an update from all of them, after one such step to warm up."""
    forward = forward_of("graphs", learner.policy, size, work, work.short_tokens)
    assert isinstance(forward, ModuleForward)
    spent: list[tuple[float, float]] = []
    for _ in range(2):
        forward.renew(forward.shape)
        made = decode(bench, forward, size, work, work.short_tokens)
        groups = groups_of(made["rows"], units(work, size))
        spent.append((made["seconds"], bench.seconds(partial(learn, learner, groups))))
    sampling, update = spent[1]
    return {"seconds": sampling + update, "sampling": sampling, "update": update, "first_seconds": sum(spent[0])}


def measure(bench: Bench, name: str, size: Size, work: Work) -> None:
    """Everything about GroupRL at one size."""
    model = build(size, bench.device)
    bench.found[f"{name} shape"] = asdict(size) | {"parameters": sum(w.numel() for w in model.parameters())}
    learner, groups = learner_of(bench, model), None
    for form, tokens in (("graphs", work.max_tokens), *((form, work.short_tokens) for form in FORMS)):
        made = bench.part(f"{name} decode, {form}, {tokens}", decoding, form, model, size, work, tokens)
        if made is not None and tokens == work.max_tokens:
            groups = groups_of(made["rows"], units(work, size))[: work.learned_groups]
    if groups is not None:
        bench.part(f"{name} learn, {work.max_tokens}", learning, learner, size, groups)
    bench.part(f"{name} step, {work.short_tokens}", whole_step, learner, size, work)


def table(found: dict[str, Any]) -> str:
    """One line a part."""
    columns = ("seconds", "tokens_s", "floor_share", "rate_share", "forward_ms", "rest_ms", "first_seconds", "peak_gib")
    lines = [f"{'':<34}" + "".join(f"{column:>14}" for column in columns)]
    for name, part in found.items():
        if "seconds" in part:
            cells = (f"{part[column]:>14,.3g}" if column in part else " " * 14 for column in columns)
            lines.append(f"{name:<34}" + "".join(cells))
        elif "failed" in part or "left out after" in part:
            lines.append(f"{name:<34}  {part}")
    return "\n".join(lines)


def check_smoke(found: dict[str, Any]) -> None:
    """A part that fails ends a smoke; peers that are not installed are left out."""
    for name, part in found.items():
        if "TRL" in name and part.get("failed", "").startswith("ModuleNotFoundError"):
            print(f"left out, {name}: {part['failed']}")
        elif "failed" in part:
            raise SystemExit(f"{name}: {part['failed']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true", help="toy sizes on the CPU: whether it runs, not how fast")
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--json", type=Path, help="where to write what was found, after every part")
    parser.add_argument("--seconds", type=float, default=520, help="no part begins later than this")
    parser.add_argument("--rows", type=int, help="completions of a prompt, in the place of 8")
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--trl-micro-batch", type=int, default=32)
    parser.add_argument("--trl-checkpointing", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(arguments, torch.device("cpu" if arguments.smoke else arguments.device))
    work = TINY_WORK if arguments.smoke else Work()
    work = replace(work, group_size=arguments.rows) if arguments.rows else work
    bench.found["machine"] = machine_facts(bench.device)
    bench.found["work"] = asdict(work)
    if bench.part("device", limits) is None:
        raise SystemExit(1)
    for name in ["tiny"] if arguments.smoke else arguments.sizes:
        size = TINY if arguments.smoke else SIZES[name]
        measure(bench, name, size, work)
        bench.part(f"{name} transformers generate, {work.short_tokens}", transformers_generate, size, work)
        if name != "1.5B":
            bench.part(f"{name} TRL step, {work.short_tokens}", trl_step, size, work)
    print(table(bench.found))
    if arguments.smoke:
        check_smoke(bench.found)
    if arguments.json:
        arguments.json.write_text(json.dumps(bench.found, indent=1))


if __name__ == "__main__":
    main()
