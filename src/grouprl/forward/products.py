"""From how many rows on the bits of a product's rows no longer depend on the number of rows, measured on this CPU.

Libraries compute products of few rows by other code, which rounds otherwise: MKL's float32 products of 1 to 3 rows on a
Zen 3 (AVX2), of 1 to 15 on a Sapphire Rapids (AVX-512), oneDNN's in bfloat16 of up to 36 with AMX. How many rows are
computed together depends on when tools answer and on threads, and a completion must not. So products have enough rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grouprl.forward.precision import is_emulated

ISA_SETTINGS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Environment variables that change the instructions of products."""
_COUNTS, _MANY = (*range(1, 65), 72, 80, 96, 127, 191), 256  # rows that are compared with the same among many
_MULTIPLES = (1, 4, 16)  # a product for one number moves to a library's product with a vector, unless rows are even
_WEIGHTS, _EMULATED_WEIGHTS = 1 << 19, 1 << 16  # most of a measured product; more outputs are more of the same tiles
# oneDNN compiles a bfloat16 product for each new number of rows and caches 1,024 of them: 0.3 ms and 0.7 MiB each on a
# Zen 5 core (torch 2.13). Padding keeps the numbers of rows few.
_PACK_ROWS, _DECODE_ROWS = 64, 8

STRICTER = {
    torch.float32: "export MKL_CBWR=AVX512,STRICT (on an Intel CPU; AVX2,STRICT without AVX-512)",
    torch.bfloat16: "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 (on an Intel CPU with AMX), or model.dtype=float32",
}
"""What helps where no number of rows does."""

Sizes = frozenset[tuple[int, ...]]
"""Inputs and outputs of products; with a third number, of a batch of products that have a right side each."""


class EqualRows(NamedTuple):
    """Products whose number of rows is a multiple of this, and at least `fewest`, give a row the same bits."""

    fewest: int
    multiple: int = 1
    holds: bool = True  # False: no such number up to 64 was found


_KNOWN: dict[tuple[tuple[int, ...], torch.dtype, int], EqualRows] = {}
_LOCK = Lock()


def product_sizes(*parts: nn.Module) -> Sizes:
    """Of all linear layers in these modules."""
    return frozenset(
        (layer.in_features, layer.out_features)
        for part in parts
        for layer in part.modules()
        if isinstance(layer, nn.Linear)
    )


def padded_rows(rows: int, dtype: torch.dtype, sizes: Sizes, *, decoding: bool = False) -> int:
    """The number of rows, padding included, of products of these sizes on the CPU; see `equal_rows`."""
    rule = equal_rows(sizes, dtype)
    step = max(rule.multiple, (_DECODE_ROWS if decoding else _PACK_ROWS) if dtype == torch.bfloat16 else 1)
    return -(-max(rows, rule.fewest) // step) * step


def padded_call(part: nn.Module, x_SH: Tensor, call: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """What linear layers give for rows, [S, ...]; on a CPU computed with enough rows.

    `call`: the layers with copies of their weights; None = as they are.
    """
    call = call or part
    if x_SH.device.type != "cpu":
        return call(x_SH)
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x_SH.dtype
    padding = padded_rows(len(x_SH), dtype, product_sizes(part), decoding=True) - len(x_SH)
    return call(F.pad(x_SH, (0, 0, 0, padding)))[: len(x_SH)]


def padded_chunks(count: int, rows: int, dtype: torch.dtype, sizes: Sizes) -> tuple[int, int]:
    """The rows of each chunk, about `rows`, and the padding of `count` rows, so that each chunk has enough."""
    rows = padded_rows(rows, dtype, sizes, decoding=True)
    rest = count % rows
    return rows, min(padded_rows(rest, dtype, sizes), rows) - rest if rest else 0


def equal_rows(sizes: Sizes, dtype: torch.dtype) -> EqualRows:
    """What products of all these sizes need, with this thread's number of threads; measures what no file has yet."""
    threads = torch.get_num_threads()
    rules = [_KNOWN.get((size, dtype, threads)) for size in sizes]
    if None in rules:
        with _LOCK:
            _learn([size for size in sizes if (size, dtype, threads) not in _KNOWN], dtype, threads)
        rules = [_KNOWN[size, dtype, threads] for size in sizes]
    fewest, multiples, holds = zip(*(rule for rule in rules if rule is not None), strict=True) if rules else ([1],) * 3
    return EqualRows(max(fewest), max(multiples), all(holds))


def _learn(sizes: list[tuple[int, ...]], dtype: torch.dtype, threads: int) -> None:
    file, names = _file(), {size: f"{size} {dtype} {threads}" for size in sizes}
    recorded: dict[str, list[int]] = {}
    with suppress(OSError, ValueError):
        recorded = dict(json.loads(file.read_text(encoding="utf-8")))
    # A new thread has none of the caller's modes, such as autocast.
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        for size, name in names.items():
            with suppress(KeyError, TypeError, ValueError):
                fewest, multiple, holds = map(int, recorded[name])
                _KNOWN[size, dtype, threads] = EqualRows(fewest, multiple, bool(holds))
                continue
            rule = pool.submit(_measured, dtype, *size).result()
            recorded[name], _KNOWN[size, dtype, threads] = [*map(int, rule)], rule
    # Renamed, so that no process reads half a file. Where writing fails, each process measures.
    with suppress(OSError), tempfile.TemporaryDirectory(dir=file.parent) as folder:
        complete = Path(folder) / file.name
        complete.write_text(json.dumps(recorded), encoding="utf-8")
        complete.replace(file)


@torch.no_grad()
def _measured(dtype: torch.dtype, inner: int, outer: int, batch: int = 0) -> EqualRows:
    """Compares rows in products of few rows with the same rows among many."""

    def product(rows: Tensor, copies: int) -> Tensor:
        if not batch:
            return F.linear(rows.clone(), weight)
        return (rows.repeat(copies, 1, 1) @ weight.repeat(copies, 1, 1).mT)[-1]

    most = max(64, (_EMULATED_WEIGHTS if is_emulated(torch.device("cpu"), str(dtype)[6:]) else _WEIGHTS) // inner)
    if outer > most:
        outer = most // 64 * 64 + outer % 64  # the last tile as it is
    numbers = torch.Generator().manual_seed(0)
    weight = torch.randn(outer, inner, generator=numbers).to(dtype)
    x = torch.randn(_MANY, inner, generator=numbers).to(dtype)
    expected = product(x, batch)
    for multiple in _MULTIPLES:
        counts = [count for count in _COUNTS if count % multiple == 0]
        begins = {count: 7 * count % (_MANY - count) for count in counts}  # another place among the rows for each
        differ = [
            count
            for count, at in begins.items()
            if not torch.equal(product(x[at : at + count], 1), expected[at : at + count])
        ]
        fewest = max(differ, default=0) // multiple * multiple + multiple
        if fewest <= counts[-1] and fewest <= 64:
            return EqualRows(fewest, multiple)
    return EqualRows(_MULTIPLES[-1], _MULTIPLES[-1], holds=False)


def processor() -> list[str]:
    """What tells this processor from others."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return [
        platform.machine(),
        *sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}),
    ]


def cache_folder() -> Path:
    """The folder for what was compiled or measured once; a temporary one where the cache cannot be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grouprl"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="grouprl-"))


def _file() -> Path:
    settings = [os.environ.get(name) for name in ISA_SETTINGS]
    key = repr((torch.__version__, processor(), settings, _COUNTS, _MANY, _WEIGHTS, _EMULATED_WEIGHTS)).encode()
    return cache_folder() / f"products-{hashlib.blake2b(key, digest_size=12).hexdigest()}.json"
