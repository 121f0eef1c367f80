"""The tables of docs/performance.md from what `make bench` and `vs_trl.py` wrote.

python benchmarks/speed_tables.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from speed import TARGETS, cell
from speed_rows import HERE

RESULTS = HERE / "results"


def bench(sections: dict[str, Any]) -> Iterator[str]:
    for section in sections.values():
        peers = sorted({row["peer_name"] for row in section["rows"] if row["peer_name"]})
        yield f"\n**{section['title']}**" + (f" (peer: {', '.join(peers)})" if len(peers) == 1 else "") + "\n"
        yield "| | unit | GroupRL | peer | ratio | wanted | floor | reached of it |"
        yield "|---|---|---|---|---|---|---|---|"
        for row in section["rows"]:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
            target = TARGETS.get(row["name"])
            share = "" if row["of_floor"] is None else f"{row['of_floor']:.0%}"
            figures = (cell(row["ours"]), cell(row["peer"]), ratio, cell(target), cell(row["floor"]), share)
            yield f"| {row['name']} | {row['unit']} | {' | '.join(figures)} |"


def steps(dtype: str, cases: dict[str, Any]) -> Iterator[str]:
    yield f"\n**Steps in {dtype}**\n"
    yield "| | | seconds | times GroupRL's | sampling | reference | learning | MiB | floor, s | reached of it |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for case, found in cases.items():
        ours = found["GroupRL"]
        for name, one in found.items():
            parts = [f"{one['parts'][part][1]:.2f}" for part in ("generation", "reference", "learn")]
            floor = (f"{ours['floor']:.2f}", f"{ours['floor'] / one['cpu']:.0%}")
            label = name if name == "GroupRL" else f"TRL, {name}"
            figures = (
                f"{one['cpu']:.2f}",
                f"{one['cpu'] / ours['cpu']:.2f}",
                *parts,
                f"{one['above_imports_mib']:.0f}",
            )
            yield f"| {case} | {label} | {' | '.join((*figures, *floor))} |"


def main() -> None:
    print(*bench(json.loads((RESULTS / "cpu.json").read_text())["sections"]), sep="\n")
    for dtype in ("float32", "bfloat16"):
        print(*steps(dtype, json.loads((RESULTS / f"vs_trl_{dtype}.json").read_text())["speed"]), sep="\n")


if __name__ == "__main__":
    main()
