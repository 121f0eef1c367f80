"""What the project holds itself to, by instruction set: the ratio of a row of `make bench` should be at least this.

The ratios differ because peers do: without AVX-512 a product takes longer, and what is around it counts less.
"""

from __future__ import annotations

from itertools import product

import torch

SHAPES = ("small", "grouped", "wide")
DTYPES = ("float32", "bfloat16")
CASES = ("KL", "no KL, half silent")
REAL = "smollm2-135m"
_ALL = {
    **{f"{REAL}, prompts of 60, {dtype}, step beside TRL": 3.0 for dtype in DTYPES},
    **{f"{REAL}, {shots} examples, {dtype}, step beside TRL": 5.0 for shots, dtype in product((2, 8), DTYPES)},
    **{
        f"{REAL}, {case}, {dtype}, {row}": wanted
        for case, dtype in product(("prompts of 60", "2 examples", "8 examples"), DTYPES)
        for row, wanted in {
            "peak memory": 3.0,  # at most 0.33 x
            "2 threads, step": 1.8,
            "step": 0.75 if dtype == "float32" else 0.6,  # of the floor
        }.items()
    },
    **{f"{shape}, {dtype}, kernels off": 2.8 for shape, dtype in product(SHAPES, DTYPES)},
    **{f"prompt as long as completions, {dtype}": 2.0 for dtype in DTYPES},
    **{f"prompt 1024, completions 64, {dtype}": 5.0 for dtype in DTYPES},
    **{f"{case}, {dtype}, memory": 2.0 for case, dtype in product(CASES, DTYPES)},
    "4,096 x 151,936, memory": 20.0,
    "sampling: completion length": 0.9,  # an exponent of at most 1.1
    "learning: completion length": 0.9,
    "sampling: one more completion": 0.5,  # of a prompt 16 times as long costs at most twice as much
    "learning: one more completion": 0.5,
    "sampling: group size, prompts of 512 tokens": 1.1,  # an exponent of at most 0.9
    "learning: group size, prompts of 512 tokens": 1.1,
    "learning: groups without signal, no KL": 0.9,
    "demo, 2 threads, step": 1.7,
    "small, 2 threads, step": 1.7,
    "wide, 2 threads, step": 1.8,
    "demo, default threads, step": 1.0,
    "demo, all cores busy, step": 1 / 3,
}
_OF_SET = {
    "avx2": {
        **{f"{shape}, float32": 3.0 for shape in SHAPES},
        "KL, float32, time": 2.6,
        "no KL, half silent, float32, time": 3.5,
    },
    "avx512": {
        **{f"{shape}, float32": 4.0 for shape in SHAPES},
        **{f"{shape}, bfloat16": 6.0 for shape in SHAPES},
        "KL, float32, time": 2.1,
        "no KL, half silent, float32, time": 4.0,
        "KL, bfloat16, time": 5.0,
        "no KL, half silent, bfloat16, time": 7.0,
    },
}


def instruction_set() -> str:
    """What torch computes with on this processor: avx2, avx512, default."""
    return torch.backends.cpu.get_cpu_capability().lower()


def targets(instructions: str) -> dict[str, float]:
    """The ratio wanted of each row, by its name."""
    return _ALL | _OF_SET.get(instructions, {})
