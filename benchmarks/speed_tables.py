"""The tables of docs/performance.md and of the pages in benchmarks/results from what `make bench`, `vs_trl.py` and
`trl_task.py` wrote there, for each instruction set in a folder of its own.

    python benchmarks/speed_tables.py [--write]

A test holds the pages to them; `--write` puts them where a page has the old ones.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from speed import cell
from speed_rows import HERE
from speed_targets import REAL, targets
from trl_task import MEASURES, middle_seconds

RESULTS = HERE / "results"
# In their order on a page; "steps" is of `vs_trl.py`, "task" of `trl_task.py`, the others of `make bench`.
SECTIONS = ("steps", "task", "cores", "sampling", "learning", "kernels", "logprobs", "overhead", "curves", "real")
SHOWN_FIRST = ("steps", "real")
# The tables of each page: of an instruction set these sections, where they were measured.
PAGES = {
    HERE.parent / "docs" / "performance.md": ("avx2", SHOWN_FIRST),
    RESULTS / "avx2" / "README.md": ("avx2", tuple(name for name in SECTIONS if name not in SHOWN_FIRST)),
    RESULTS / "avx512" / "README.md": ("avx512", SECTIONS),
}
GREEDY = {"greedy": "greedy", "sampled": "of samples"}


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table without the columns that are empty in every row; a unit of all rows stands in the first head."""
    units = {row[head.index("unit")] for row in rows} if "unit" in head else set()
    if len(units) == 1:
        (unit,) = units
        head, rows = ["seconds" if unit == "s" else unit, *head[2:]], [[row[0], *row[2:]] for row in rows]
    columns = [at for at, _ in enumerate(head) if at < 2 or any(row[at] for row in rows)]
    cut = [[row[at] for at in columns] for row in (head, *rows)]
    return [f"| {' | '.join(cut[0])} |", "|" + "---|" * len(columns), *(f"| {' | '.join(row)} |" for row in cut[1:])]


def bench(section: dict[str, Any], wanted: dict[str, float]) -> list[str]:
    """A section of `make bench`."""
    rows = []
    for row in section["rows"]:
        if row["peer"] is None and row["floor"] is None:
            continue  # it is the peer of a later row
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        share = "" if row["of_floor"] is None else f"{row['of_floor']:.0%}"
        target = cell(wanted.get(row["name"]))
        figures = (cell(row["ours"]), cell(row["peer"]), ratio, target, cell(row["floor"]), share)
        rows.append((row["name"].removeprefix(f"{REAL}, "), row["unit"], *figures))
    return lines(("", "unit", "GroupRL", "peer", "ratio", "wanted", "floor", "reached of it"), rows)


def in_sizes(table: list[str]) -> list[str]:
    """A table whose rows differ in a size, one row for all sizes: "swiglu, MLP size 512, float32" and so on."""
    head, rule, *rows = table
    by_name: dict[tuple[str, str], list[list[str]]] = {}
    for row in rows:
        name, *figures = row.strip("| ").split(" | ")
        before, size, after = re.split(r"(\d+)(?=,)", name)
        by_name.setdefault((before, after), []).append([size, *figures])
    joined = []
    for (before, after), columns in by_name.items():
        sizes, *figures = (", ".join(cells) for cells in zip(*columns, strict=True))
        joined.append(f"| {' | '.join((before + sizes + after, *figures))} |")
    return [head, rule, *joined]


def steps(cases: dict[str, Any]) -> list[str]:
    """Whole steps beside TRL."""
    head = ("", "", "seconds", "times GroupRL's", "sampling", "reference", "learning", "MiB", "floor, s")
    rows = []
    for case, found in cases.items():
        ours = found["GroupRL"]
        for name, one in found.items():
            parts = [f"{one['parts'][part][1]:.2f}" for part in ("generation", "reference", "learn")]
            figures = (
                f"{one['cpu']:.2f}",
                f"{one['cpu'] / ours['cpu']:.2f}",
                *parts,
                f"{one['above_imports_mib']:.0f}",
            )
            floor = (f"{ours['floor']:.2f}", f"{ours['floor'] / one['cpu']:.0%}")
            first = case if name == "GroupRL" else ""
            rows.append((first, name if name == "GroupRL" else f"TRL, {name}", *figures, *floor))
    return lines((*head, "reached of it"), rows)


def task(found: dict[str, dict[str, list[dict[str, float]]]]) -> list[str]:
    """Training seconds to the goal, median of the seeds."""
    rows = []
    for measure in MEASURES:
        ours, theirs = (middle_seconds(found[library].values(), measure)[1] for library in ("grouprl", "trl"))
        rows.append((GREEDY[measure], f"{ours:.2f} s", f"{theirs:.2f} s", f"{theirs / ours:.1f}"))
    return lines(("to 90 % of held-out problems, same recipe", "GroupRL", "TRL", "ratio"), rows)


def tables(page: Path) -> Iterator[list[str]]:
    """All tables of a page, from top to bottom."""
    instructions, wanted = PAGES[page]
    folder = RESULTS / instructions
    path = folder / "cpu.json"
    sections = json.loads(path.read_text())["sections"] if path.exists() else {}
    for name in wanted:
        if name == "steps":
            for dtype in ("float32", "bfloat16"):
                if (path := folder / f"vs_trl_{dtype}.json").exists():
                    yield steps(json.loads(path.read_text())["speed"])
        elif name == "task":
            if (path := folder / "trl_task.json").exists():
                yield task(json.loads(path.read_text()))
        elif name in sections:
            table = bench(sections[name], targets(instructions))
            yield in_sizes(table) if name == "kernels" else table


def written(page: Path) -> str:
    """A page with these tables in the place of those that it has."""
    made = tables(page)
    text = re.sub(
        r"(?:^\|.*\n)+", lambda _: "\n".join(next(made)) + "\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert next(made, None) is None, f"expected {page} to have a table for each section, got fewer"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into the pages")
    parser.add_argument("--smoke", action="store_true", help="the same: it measures nothing")
    write = parser.parse_args().write
    for page in PAGES:
        if write:
            page.write_text(written(page), encoding="utf-8")
        for table in tables(page):
            print(*table, sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
