"""Milliseconds that a decode step costs beside its arithmetic: a model so small that the arithmetic is nothing.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_overhead.py [--smoke]

Hidden size 32, 8 rows of one group, 6 and 12 layers, 96 steps each. What grows with the layers is the cost of a layer;
the rest is what a step costs whatever the model: drawing, counting, looking who has ended. The smallest time of several
calls: what disturbs a call can only add to it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shapes import SHAPES, Shape
from speed_rows import Row, Worker, answer_lines, finish, in_turns, say, section_parser, smaller
from speed_sampling import generate, grouprl

LAYERS = (6, 12)


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


def main() -> None:
    parser = section_parser(__doc__)
    parser.add_argument("--answer", action="store_true", help="measure what is asked for on the standard input")
    given = parser.parse_args()
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
