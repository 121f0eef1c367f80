"""How seconds grow: with completion tokens, prompt length, group size and the share of groups without signal.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_curves.py [--smoke] [--picture docs/images/cost_curves.png]

The model `small` of `shapes.py` whose end token is never drawn, so that completions are exactly as long as asked for;
float32; learning is a forward and a backward pass without an optimizer. Points of a curve are measured in turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from shapes import END, SHAPES, Shape, build, tokenizer
from speed_pictures import draw
from speed_rows import Curve, Row, finish, median_seconds, say, section_parser, smaller
from speed_work import learner, made_up, requests
from transformers import LlamaForCausalLM

from grouprl.rollout import NativeEngine
from grouprl.types import Sampling

BASE = replace(SHAPES["small"], problems=4, group_size=8, prompt_tokens=64, max_tokens=64)
KINDS = ("sampling", "learning")


@cache
def endless() -> LlamaForCausalLM:
    """The end token is drawn with a probability of about e^-39."""
    model = build(BASE)
    with torch.no_grad():
        model.get_input_embeddings().weight[END] *= -30.0
    model.set_attn_implementation("grouprl")
    return model


def sampling(shape: Shape) -> Callable[[], object]:
    engine = NativeEngine(endless(), tokenizer(), seed=0, max_rows=256)
    asked = requests(shape)
    return lambda: engine.generate(asked, Sampling(max_tokens=shape.max_tokens))


def learning(shape: Shape, *, kl_coef: float = 0.04, silent: float = 0.0) -> Callable[[], object]:
    work = made_up(shape, mean_tokens=shape.max_tokens, kl_coef=kl_coef, silent=silent)
    packed = learner(endless(), work.algorithm, "float32")
    return lambda: packed.learn(work.batch, work.credit, work.before, step=2)


def both(shapes: Sequence[Shape], rounds: int) -> dict[str, list[float]]:
    """Seconds of sampling and of learning of each shape."""
    runs = {f"{kind} {at}": maker(shape) for kind, maker in MAKERS for at, shape in enumerate(shapes)}
    seconds = median_seconds(runs, rounds=rounds, at_most=12)
    return {kind: [seconds[f"{kind} {at}"] for at in range(len(shapes))] for kind in KINDS}


MAKERS = (("sampling", sampling), ("learning", learning))


def by_completion_tokens(base: Shape, points: Sequence[int], rounds: int) -> Curve:
    seconds = both([replace(base, max_tokens=tokens) for tokens in points], rounds)
    return Curve("Completion length", "tokens of a completion", points, seconds, "linear")


def by_prompt_tokens(base: Shape, points: Sequence[int], rounds: int) -> Curve:
    """Seconds of one more completion: of groups of 12 less those of groups of 4."""
    few, many = 4, 12
    base = replace(base, problems=2)
    shapes = [replace(base, prompt_tokens=tokens, group_size=size) for tokens in points for size in (few, many)]
    found = both(shapes, rounds)
    completions = base.problems * (many - few)
    extra = {
        kind: [(after - before) / completions for before, after in zip(taken[::2], taken[1::2], strict=True)]
        for kind, taken in found.items()
    }
    return Curve("One more completion", "tokens of its prompt", points, extra, "flat")


def by_group_size(base: Shape, points: Sequence[int], rounds: int) -> Curve:
    seconds = both([replace(base, prompt_tokens=512, group_size=size, problems=2) for size in points], rounds)
    return Curve("Group size, prompts of 512 tokens", "completions of a group", points, seconds, "linear")


def by_silent_share(base: Shape, points: Sequence[float], rounds: int) -> Curve:
    runs = {str(share): learning(replace(base, problems=8), kl_coef=0.0, silent=share) for share in points}
    seconds = median_seconds(runs, rounds=rounds, at_most=12)
    return Curve(
        "Groups without signal, no KL", "share of the groups", points, {"learning": list(seconds.values())}, "falls"
    )


def growth(curve: Curve, kind: str) -> float:
    """Exponent of a power law through the points, by least squares: 1 = linear."""
    pairs = zip(curve.points, curve.seconds[kind], strict=True)
    logs = [(math.log(point), math.log(max(seconds, 1e-9))) for point, seconds in pairs]
    x_mean, y_mean = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    exponent: float = sum((x - x_mean) * (y - y_mean) for x, y in logs) / sum((x - x_mean) ** 2 for x, _ in logs)
    return exponent


def rows_of(curve: Curve) -> list[Row]:
    """What the curve should be, and what it is."""
    rows = []
    for kind, seconds in curve.seconds.items():
        label = f"{kind}: {curve.title[0].lower()}{curve.title[1:]}"
        if curve.expected == "linear":
            rows.append(smaller(label, "exponent", growth(curve, kind), 1.0, "linear"))
        elif curve.expected == "flat":
            times = f"x from {curve.points[0]} to {curve.points[-1]}"
            rows.append(smaller(label, times, seconds[-1] / seconds[0], 1.0, "flat"))
        else:
            half = list(curve.points).index(0.5)
            rows.append(smaller(label, "x at half of them", seconds[half] / seconds[0], 0.5, "in proportion"))
    return rows


def table(curve: Curve) -> str:
    lines = [f"{curve.title} ({curve.axis}): " + "  ".join(f"{point:>7g}" for point in curve.points)]
    for kind, seconds in curve.seconds.items():
        cells = "  ".join(f"{1e3 * value:>7.1f}" for value in seconds)
        lines.append(f"{kind + ', ms':>{len(lines[0].partition(': ')[0])}}: {cells}")
    return "\n  ".join(lines)


def main() -> None:
    parser = section_parser(__doc__)
    parser.add_argument("--picture", type=Path, help="where to draw the curves")
    given = parser.parse_args()
    smoke, rounds = given.smoke, 1 if given.smoke else 3
    base = replace(BASE, problems=2, max_tokens=8) if smoke else BASE
    makers: tuple[tuple[Any, Sequence[float]], ...] = (
        (by_completion_tokens, (8, 16) if smoke else (32, 64, 128, 192)),
        (by_prompt_tokens, (16, 64) if smoke else (64, 256, 1024)),
        (by_group_size, (2, 4) if smoke else (2, 4, 8, 16)),
        (by_silent_share, (0.0, 0.5, 1.0) if smoke else (0.0, 0.25, 0.5, 0.75, 1.0)),
    )
    curves = []
    for maker, points in makers:
        curves.append(maker(base, points, rounds))
        say(table(curves[-1]))
    if given.picture:
        draw(curves, given.picture)
    rows = [row for curve in curves for row in rows_of(curve)]
    finish(rows, curves=[{"title": c.title, "axis": c.axis, "points": c.points, "seconds": c.seconds} for c in curves])


if __name__ == "__main__":
    main()
