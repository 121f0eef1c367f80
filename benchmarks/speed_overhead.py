"""Milliseconds that a decode step costs beside its arithmetic: a model so small that the arithmetic is nothing.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_overhead.py [--smoke]
    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_overhead.py --padding [--smoke]

Hidden size 32, 8 rows of one group, 6 and 12 layers, 96 steps each. What grows with the layers is the cost of a layer;
the rest is what a step costs whatever the model: drawing, counting, looking who has ended. The smallest time of several
calls: what disturbs a call can only add to it.

With `--padding`: what the padding costs that gives a product of few rows the bits of many, for 1 to 8 live rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from shapes import REAL, SHAPES, TINY, Shape, build
from speed_rows import Row, Worker, answer_lines, finish, in_turns, say, section_parser, smaller, timed
from speed_sampling import generate, grouprl

from grouprl.forward.attention import NAME, attention_layers
from grouprl.forward.head import output_head
from grouprl.forward.products import equal_rows, product_sizes
from grouprl.kernels.compiled_forward import CompiledForward
from grouprl.kernels.compiled_weights import CompiledWeights
from grouprl.models.load import load_model
from grouprl.rollout.cache import CacheShape
from grouprl.rollout.rows import Rows
from grouprl.types import Sampling

CPU, LAYERS = torch.device("cpu"), (6, 12)


def shape_of(layers: int, steps: int) -> Shape:
    return replace(
        SHAPES["small"], hidden=32, intermediate=32, heads=2, kv_heads=1, layers=layers, problems=1, max_tokens=steps
    )


def step_ms(form: str, layers: int, steps: int, number: int) -> float:
    shape = shape_of(layers, steps)
    if form == "generate":
        one = generate(shape, "float32", "float32", number)
    else:
        one = grouprl(shape, "float32", number)
    return 1e3 * one.seconds / max(one.lengths)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    return {"ms": step_ms("grouprl", **question)}


@torch.no_grad()
def report_padding(shape: Shape, rounds: int) -> None:
    """Prints the milliseconds of decode steps with and without padding, for the bundled model and for a shape."""
    models = {"bundled model": load_model("abacus", device=CPU), f"hidden size {shape.hidden}": build(shape)}
    for name, model in models.items():
        model.set_attn_implementation(NAME)
        weights, layers = CompiledWeights(model, torch.float32), attention_layers(model)
        sizes = product_sizes(model.get_decoder(), output_head(model))
        print(f"{name}: equal bits from {equal_rows(sizes, torch.float32).fewest} rows on")
        cache = CacheShape(len(layers), layers[0].kv_heads, layers[0].key_size, 1, 8, 48, 2 * rounds)
        padded, bare = CompiledForward(weights, cache), CompiledForward(weights, cache)
        bare._padded = lambda rows: rows  # type: ignore[method-assign]
        for count in range(1, 9):
            rows = Rows(8, Sampling(max_tokens=64), (), CPU)
            rows.add([(0, row, 48, 0) for row in range(count)])
            rows.length[:], rows.newest[:] = 1, 2
            forms = {"padded": padded, "bare": bare}
            steps = {form: partial(forward.decode_step, rows, 8, [48]) for form, forward in forms.items()}
            timers = {form: (lambda _, step=step: timed(step)[0]) for form, step in steps.items()}
            found = in_turns(timers, rounds=rounds)
            ours, peer = (1e3 * min(taken[1:]) for taken in found.values())
            print(f"  {count} live rows: {ours:8.3f} ms, unpadded {peer:8.3f} ms, ratio {ours / peer:.2f}", flush=True)


def main() -> None:
    parser = section_parser(__doc__)
    parser.add_argument("--answer", action="store_true", help="measure what is asked for on the standard input")
    parser.add_argument("--padding", action="store_true", help="the cost of padding products of few rows")
    given = parser.parse_args()
    if given.padding:
        report_padding(TINY if given.smoke else REAL["smollm2-135m"], 2 if given.smoke else 40)
        return
    if given.answer:
        answer_lines(answer)
        return
    steps, rounds = (4, 2) if given.smoke else (96, 6)
    with Worker("speed_overhead.py", "--answer", kernels=False) as plain:

        def measure(form: str, layers: int, number: int) -> float:
            if form == "plain":
                return float(plain.ask({"layers": layers, "steps": steps, "number": number})["ms"])
            return step_ms(form, layers, steps, number)

        contestants = {
            f"{form}, {layers}": (lambda number, form=form, layers=layers: measure(form, layers, number))
            for form in ("compiled", "plain", "generate")
            for layers in LAYERS
        }
        found = in_turns(contestants, rounds=rounds)
    # The first round warms up.
    best = {name: min(taken[1:]) for name, taken in found.items()}
    rows: list[Row] = []
    for form, label in (("compiled", ""), ("plain", ", kernels off")):
        slopes = {one: (best[f"{one}, 12"] - best[f"{one}, 6"]) / 6 for one in (form, "generate")}
        rows.append(smaller(f"step of 6 layers{label}", "ms", best[f"{form}, 6"], best["generate, 6"], "generate"))
        rows.append(smaller(f"each layer{label}", "ms", slopes[form], slopes["generate"], "generate"))
    for row in rows:
        say(f"{row.name}: {row.ours:.3f} ms, generate {row.peer:.3f} ms")
    finish(rows, milliseconds=found)


if __name__ == "__main__":
    main()
