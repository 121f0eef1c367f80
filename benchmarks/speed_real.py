"""Steps of models as large as people train, with their vocabularies and random weights, beside the floor and peers.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_real.py [--smoke]
    ... --cases "2 examples" --only floor trl          a part of it (of `make bench`: ARGS='--only real -- --cases ...')

8 problems x 8 completions of up to 64 tokens, KL on, CPU seconds of one thread. "prompts of 60": random tokens, none
shared. "2 examples": prompts of 175 tokens, of which 140 are the same in all, as with worked examples. "8 examples":
835 and 800, 4 problems, so that TRL ends; "16 groups" is the same with 16. One step after a short one, which warms up
and allocates the moments. `floor`: each part beside the floor, which is the peer. `trl`: the step and the peak memory
of the process beside TRL's, with the fastest of micro-batches 4, 8 and 16 in a short step of its own; its seconds are
scaled to the tokens of ours, because the lengths of completions are each library's own draw. `threads`: wall clock on
two threads beside one, on a quiet machine. `unshared`: the step beside the same with shared tokens read for each group.
`generate`: sampling beside transformers'. `larger`: two more models beside their floors, completions of 16 tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from floor import CPU, DTYPES
from shapes import REAL, TINY, Shape, brief
from speed_rows import Row, child, faster, finish, say, section_parser, smaller
from speed_sampling import fastest_generate, grouprl
from speed_targets import REAL as NAME
from trl_peer import VARIANTS, missing_trl

from grouprl.forward.precision import is_emulated

CASES: dict[str, dict[str, int]] = {
    "prompts of 60": {"prompt_tokens": 60},
    "2 examples": {"prompt_tokens": 175, "shared_tokens": 140},
    "8 examples": {"prompt_tokens": 835, "shared_tokens": 800, "problems": 4},
    "8 examples, 16 groups": {"prompt_tokens": 835, "shared_tokens": 800, "problems": 16},
}
BRIEF = tuple(CASES)[:2]  # the others take half an hour
MEASURES = ("floor", "trl", "threads", "unshared", "generate", "larger")
USUAL = tuple(name for name in MEASURES if name != "unshared")
PEERS = ("micro_4", "micro_8", "tuned")
TRL_TOKENS = 4096  # of a micro-batch: TRL holds 10 GiB for them
RACE: dict[str, int] = {"problems": 2, "max_tokens": 16}
Found = dict[str, Any]


def shape_of(case: dict[str, int], smoke: bool) -> Shape:
    return replace(TINY if smoke else REAL[NAME], **case)


def words_of(name: str, sizes: dict[str, int], dtype: str, smoke: bool) -> list[str]:
    """Options of `vs_trl.py` and `trl_peer.py`."""
    words = [word for size, value in sizes.items() for word in (f"--{size.replace('_', '-')}", str(value))]
    return ["--shape", name, "--dtype", dtype, "--steps", "1", "--brief-warm-up", *words, *["--smoke"] * smoke]


def step(words: list[str], *more: str) -> Found:
    return child("vs_trl.py", "--only", "grouprl", *words, *more, silent=True)


def seconds(found: Found, clock: int) -> dict[str, float]:
    """Of the parts of a step and of the whole, as wall clock (0) or of the CPU (1)."""
    generation, reference, learn, optimizer = (found["parts"][part][clock] for part in found["floors"])
    parts = {"sampling": generation, "reference": reference, "learning": learn - optimizer, "optimizer": optimizer}
    return {name: taken for name, taken in parts.items() if taken} | {"step": found[("wall", "cpu")[clock]]}


def beside_floor(name: str, found: Found) -> list[Row]:
    """Each part and the whole step; the floor of the whole is of its products."""
    parts = ("sampling", "reference", "learning", "optimizer")
    floors = dict(zip(parts, found["floors"].values(), strict=True)) | {"step": found["floor"]}
    return [
        smaller(f"{name}, {part}", "s", taken, floors[part], "floor", floors[part])
        for part, taken in seconds(found, 1).items()
    ]


def beside_trl(name: str, ours: Found, case: dict[str, int], dtype: str, smoke: bool) -> tuple[list[Row], Found]:
    shape, race = shape_of(case, smoke), words_of(NAME, case | RACE, dtype, smoke)
    tokens = shape.prompt_tokens + shape.max_tokens
    peers = [peer for peer in PEERS if VARIANTS[dtype][peer].micro_batch * tokens <= TRL_TOKENS]
    rates = {}
    for peer in peers if len(peers) > 1 else ():
        one = child("trl_peer.py", "--variant", peer, *race, silent=True)
        rates[peer] = one["cpu"] / one["tokens"]
        say(f"{name}: TRL with micro-batches of {VARIANTS[dtype][peer].micro_batch}, short step: {one['cpu']:.1f} s")
    best = min(rates, key=lambda peer: rates[peer]) if rates else peers[0]
    whole = child("trl_peer.py", "--variant", best, *words_of(NAME, case, dtype, smoke), silent=True)
    read = shape.problems * shape.group_size * shape.prompt_tokens
    theirs = whole["cpu"] * (read + ours["tokens"]) / (read + whole["tokens"])
    title = f"TRL, micro-batch {VARIANTS[dtype][best].micro_batch}"
    rows = [
        smaller(f"{name}, step beside TRL", "s", ours["cpu"], theirs, title, ours["floor"]),
        smaller(f"{name}, peak memory", "MiB", ours["peak_mib"], whole["peak_mib"], title),
    ]
    return rows, whole | {"variant": best, "race": rates}


def on_two_threads(name: str, one: Found, two: Found) -> list[Row]:
    before, after = seconds(one, 0), seconds(two, 0)
    return [smaller(f"{name}, 2 threads, {part}", "s", after[part], before[part], "1 thread") for part in after]


def beside_generate(name: str, case: dict[str, int], dtype: str, smoke: bool) -> Row:
    shape = shape_of(case, smoke)
    peer_name, peer = fastest_generate(shape, dtype, brief(shape))
    grouprl(brief(shape), dtype, 0)
    return faster(
        f"{name}, sampling beside generate", "tokens/s", grouprl(shape, dtype, 1).rate, peer(1).rate, peer_name
    )


def measured(label: str, dtype: str, only: list[str], smoke: bool) -> tuple[list[Row], Found]:
    """All that is asked for of one case."""
    name, case = f"{NAME}, {label}, {dtype}", CASES[label]
    words = words_of(NAME, case, dtype, smoke)
    rows: list[Row] = []
    found: Found = {}
    if {"floor", "trl", "threads", "unshared"} & set(only):
        found["grouprl"] = step(words)
    if "floor" in only:
        rows += beside_floor(name, found["grouprl"])
    if "threads" in only:
        found["two threads"] = step(words, "--threads", "2")
        rows += on_two_threads(name, found["grouprl"], found["two threads"])
    if "unshared" in only and "shared_tokens" in case:
        found["unshared"] = step(words, "--unshared")
        shared, unshared = (seconds(found[form], 1) for form in ("grouprl", "unshared"))
        for part, taken in shared.items():
            rows.append(smaller(f"{name}, shared, {part}", "s", taken, unshared[part], "unshared"))
    if "generate" in only:
        rows.append(beside_generate(name, case, dtype, smoke))
    if "trl" in only and missing_trl() is None:
        more, found["trl"] = beside_trl(name, found["grouprl"], case, dtype, smoke)
        rows += more
    return rows, found


def larger(dtype: str, smoke: bool) -> list[Row]:
    """Sampling, learning without a reference, optimizer."""
    rows = []
    for shape in list(REAL)[1 : 2 if smoke else None]:
        found = step(words_of(shape, {"max_tokens": 16}, dtype, smoke), "--beta", "0")
        rows += beside_floor(f"{shape}, prompts of 60, {dtype}", found)
    return rows


def main() -> None:
    parser = section_parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=BRIEF)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=USUAL)
    parser.add_argument("--dtypes", nargs="+", choices=tuple(DTYPES), default=tuple(DTYPES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    notes = ["bfloat16: not run, this processor has no such products"] if is_emulated(CPU, "bfloat16") else []
    notes += [f"TRL: not run, {missing}"] if "trl" in given.only and (missing := missing_trl()) else []
    rows: list[Row] = []
    found: Found = {}
    only = list(given.only) if not given.smoke else [*given.only, "unshared"]
    for dtype in given.dtypes[:1] if given.smoke else given.dtypes:
        for case in given.cases[1:2] if given.smoke else given.cases:
            more, found[f"{case}, {dtype}"] = measured(case, dtype, only, given.smoke)
            rows += more
            for row in more:
                peer = "" if row.peer is None else f", {row.peer_name} {row.peer:,.2f}"
                say(f"{row.name}: {row.ours:,.2f} {row.unit}{peer}")
        rows += larger(dtype, given.smoke) if "larger" in only else []
    finish(rows, note="; ".join(notes), measured=found)


if __name__ == "__main__":
    main()
