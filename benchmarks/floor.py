"""What this machine can do at best: matrix products per second and bytes read per second, in the benchmark's own run.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/floor.py

The floor of a pass is max(FLOPs / rate, bytes / bandwidth): its matrix products and nothing else, or its weights and
cache read and nothing else. FLOPs are 2 x weights x tokens (they skip attention's own products, so the floor is a
little too low). Rates are the best of several, of products with the rows and sizes of the model at hand; bandwidth is
that of a block about as large as what the pass reads, because weights of 18 MB stay in the last cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from shapes import SHAPES, TINY, Shape
from speed_rows import Row, finish, say, section_parser, timed

from grouprl.forward.precision import is_emulated

CPU = torch.device("cpu")
# Without bfloat16 where a processor computes it in software, 8 times as slow.
DTYPES = {
    name: dtype
    for name, dtype in {"float32": torch.float32, "bfloat16": torch.bfloat16}.items()
    if not is_emulated(CPU, name)
}
BLOCKS = (16 << 20, 256 << 20)  # bytes
ROUNDS = 7


@cache
def matmul_rate(rows: int, inner: int, outer: int, dtype: str, *, enough: float = 2e9) -> float:
    """FLOPs per second of `F.linear` on [rows, inner] with weights [outer, inner], the best of several.

    Each try makes products of `enough` FLOPs in all.
    """
    x, weight = (torch.randn(size, inner).to(DTYPES[dtype]) for size in (rows, outer))
    flops = 2 * rows * inner * outer
    calls = max(1, math.ceil(enough / flops))

    def products() -> None:
        for _ in range(calls):
            F.linear(x, weight)

    products()
    return calls * flops / min(timed(products)[0] for _ in range(ROUNDS))


@cache
def read_rate(block: int) -> float:
    """Bytes per second at which a block of this many bytes is summed up, the best of several."""
    values = torch.ones(block // 4)
    calls = max(1, (64 << 20) // block)

    def read() -> None:
        for _ in range(calls):
            values.sum()

    read()
    return calls * block / min(timed(read)[0] for _ in range(ROUNDS))


def bandwidth(size: float) -> float:
    """Bytes per second, of a block about as large as `size` bytes."""
    return read_rate(min(BLOCKS, key=lambda block: abs(math.log(block / size))))


def body_weights(shape: Shape) -> int:
    """Weights in the products of the layers."""
    head = shape.hidden // shape.heads
    attention = shape.hidden * head * (2 * shape.heads + 2 * shape.kv_heads)
    return shape.layers * (attention + 3 * shape.hidden * shape.intermediate)


def head_weights(shape: Shape) -> int:
    """Weights in the product that gives logits."""
    return shape.hidden * shape.vocabulary


def prompt_tokens(shape: Shape) -> int:
    """Tokens of all prompts, the shared ones once."""
    return shape.shared_tokens + shape.problems * (shape.prompt_tokens - shape.shared_tokens)


def sampling_floor(shape: Shape, lengths: Sequence[int], dtype: str) -> float:
    """Seconds to read the prompts once and to decode completions of these lengths, step by step."""
    size = 2 if dtype == "bfloat16" else 4
    weights = body_weights(shape) + head_weights(shape)
    many, few = (matmul_rate(rows, shape.hidden, shape.intermediate, dtype) for rows in (2048, 128))
    speed = bandwidth(weights * size)
    cached = 2 * shape.layers * shape.kv_heads * (shape.hidden // shape.heads) * size  # bytes of a token
    seconds = 2 * body_weights(shape) * prompt_tokens(shape) / many
    own = shape.prompt_tokens - shape.shared_tokens
    for position in range(1, max(lengths)):
        live = sum(length > position for length in lengths)
        groups = min(live, shape.problems)
        read = weights * size + cached * (shape.shared_tokens + groups * own + live * position)
        seconds += max(2 * weights * live / few, read / speed)
    return seconds


def learning_floor(shape: Shape, packed_tokens: int, completion_tokens: int, dtype: str) -> float:
    """Seconds of a forward and a backward pass: three products for each weight, prompts once, logits of completions."""
    products = body_weights(shape) * packed_tokens + head_weights(shape) * completion_tokens
    return 6 * products / matmul_rate(2048, shape.hidden, shape.intermediate, dtype)


def optimizer_floor(shape: Shape) -> float:
    """Seconds to read and write what AdamW and the clipping of the gradient need: eight float32 of each weight."""
    size = 4 * (body_weights(shape) + head_weights(shape))
    return 8 * size / bandwidth(size)


def step_floors(
    shape: Shape, lengths: Sequence[int], dtype: str, *, reference: bool, learned: float = 1.0
) -> dict[str, float]:
    """Seconds of the parts of a GRPO step: sampling, the reference's pass, learning from a share of the completions."""
    packed = prompt_tokens(shape) + sum(lengths) - len(lengths)
    learning = learning_floor(shape, packed, sum(lengths), dtype)
    return {
        "generation": sampling_floor(shape, lengths, dtype),
        "reference": learning / 3 if reference else 0.0,
        "learn": learning * learned,
    }


def measured(smoke: bool) -> Iterator[Row]:
    """Rates of products and of reading; `smoke` skips the large ones."""
    shape, enough = (TINY, 1e6) if smoke else (SHAPES["small"], 2e9)
    sizes = [(128, shape.hidden, shape.intermediate), (2048, shape.hidden, shape.intermediate), (2048, 2048, 2048)]
    for dtype in DTYPES:
        for size in sizes[: 2 if smoke else None]:
            rate = matmul_rate(*size, dtype, enough=enough)
            yield Row(f"{dtype} {' x '.join(map(str, size))}", "GFLOP/s", rate / 1e9, None, "", None)
    for block in BLOCKS[: 1 if smoke else None]:
        yield Row(f"read {block >> 20} MB", "GB/s", read_rate(block) / 1e9, None, "", None)


def main() -> None:
    rows = list(measured(section_parser(__doc__).parse_args().smoke))
    for row in rows:
        say(f"{row.name}: {row.ours:,.1f} {row.unit}")
    finish(rows)


if __name__ == "__main__":
    main()
