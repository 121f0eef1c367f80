"""Every speed of GroupRL in one table, each beside a peer and the floor measured in the same run: `make bench`.

    python benchmarks/speed.py [--smoke] [--threads 1] [--only floor sampling ...] [--json PATH] [-- OPTIONS]

Half an hour on a quiet machine, without `real`, which takes as long and is measured when it is named. Options after
`--` go to the one section that is named, whose rows are then added to those that the file at PATH has. The machine, by
its instruction set, decides what is wanted (`speed_targets.py`). A section is a script of its own (`speed_NAME.py`,
`floor.py`), which can be run alone and says what it measures and how; what is compared runs in turns, so that noise
meets all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from speed_rows import HERE, child, say
from speed_targets import instruction_set, targets

from grouprl.kernels.build import library
from grouprl.run.machine import machine_facts

SECTIONS = {
    "floor": ("floor.py", "What this machine can do"),
    "kernels": ("speed_kernels.py", "Each kernel beside torch"),
    "sampling": ("speed_sampling.py", "Sampling"),
    "learning": ("speed_learning.py", "Forward and backward pass of the loss"),
    "logprobs": ("speed_logprobs.py", "Log-probs over a large vocabulary"),
    "overhead": ("speed_overhead.py", "Decode step without arithmetic"),
    "curves": ("speed_curves.py", "How cost grows"),
    "cores": ("speed_cores.py", "Whole GRPO step by threads"),
    "trl": ("speed_trl.py", "Whole GRPO step"),
    "real": ("speed_real.py", "Models as large as people train"),
}
USUAL = tuple(name for name in SECTIONS if name != "real")
SMOKED = ("floor", "trl")
PICTURE = HERE.parent / "docs/images/cost_curves.png"
WIDTH = 148  # characters


def machine(threads: int) -> dict[str, Any]:
    """What the numbers need beside them to mean something."""
    torch.set_num_threads(threads)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        **machine_facts(torch.device("cpu")),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "instruction_set": instruction_set(),
        "compiled_kernels": library() is not None,
        "clock": "CPU seconds" if threads == 1 else "wall clock",
        "load_at_the_start": os.getloadavg()[0],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def measured(name: str, smoke: bool, options: Sequence[str] = ()) -> dict[str, Any]:
    """What a section found, and the seconds that it took; of one that failed, a note."""
    script, title = SECTIONS[name]
    words = [*options, *["--smoke"] * smoke]
    if name == "curves" and not smoke:
        words += ["--picture", str(PICTURE)]
    say(f"--- {title}")
    began, spent = time.perf_counter(), cpu_of_children()
    try:
        found = child(script, *words)
    except SystemExit as failure:
        found = {"rows": [], "note": f"failed: {failure}", "failed": True}
    for row in found["rows"]:
        row["target"] = targets(instruction_set()).get(row["name"])
    wall, cpu = time.perf_counter() - began, cpu_of_children() - spent
    return {"title": title, "wall_seconds": round(wall, 1), "cpu_seconds": round(cpu, 1), **found}


def cpu_of_children() -> float:
    """Seconds: about what the sections would take on a machine of their own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def added(before: dict[str, Any], name: str, part: dict[str, Any]) -> dict[str, Any]:
    """A file's results with those of a part of a section in the place of its rows of the same names."""
    section = before["sections"].get(name, part)
    rows = {row["name"]: row for row in [*section["rows"], *part["rows"]]}
    whole = section | part | {"rows": list(rows.values()), "measured": section["measured"] | part["measured"]}
    return before | {"sections": before["sections"] | {name: whole}}


def cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def verdict(row: dict[str, Any]) -> tuple[str, str]:
    """Ratio and target, green where it is reached."""
    ratio, target = row["ratio"], row["target"]
    shown = f"{ratio:.2f} x" if ratio is not None else ""
    if ratio is None or target is None:
        return shown, ""
    color = "green" if ratio >= target else "red"
    return f"[{color}]{shown}[/]", f"{target:g} x"


def table(sections: dict[str, dict[str, Any]]) -> Table:
    heading = f"GroupRL beside its peers, {instruction_set()}; ratio: how many times as good, above 1 is better"
    shown = Table(title=heading)
    shown.add_column("", no_wrap=True)
    for name in ("GroupRL", "peer", "ratio", "target", "floor", "of it"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("unit, peer")
    for section in sections.values():
        shown.add_section()
        shown.add_row(f"[bold]{section['title']}[/]", *[""] * 6, section.get("note", ""))
        for row in section["rows"]:
            share = f"{row['of_floor']:.0%}" if row["of_floor"] is not None else ""
            beside = f"{row['unit']}, {row['peer_name']}" if row["peer_name"] else row["unit"]
            figures = (cell(row["ours"]), cell(row["peer"]), *verdict(row), cell(row["floor"]), share)
            shown.add_row(f"  {row['name']}", *figures, beside)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("options", nargs="*", help="after --: options of the only section")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, two sections: whether it runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--only", nargs="+", choices=tuple(SECTIONS), metavar="SECTION", help=f"of {', '.join(SECTIONS)}"
    )
    parser.add_argument(
        "--json", type=Path, help="where to write everything; of a whole run benchmarks/results/avx2/cpu.json or so"
    )
    given = parser.parse_args()
    if given.options and (given.only is None or len(given.only) > 1):
        parser.error("expected options of a section after --only and its name")
    # Each section is a benchmark with a smoke of its own.
    chosen = given.only or (SMOKED if given.smoke else USUAL)
    whole = not given.smoke and set(chosen) >= set(USUAL)
    target = given.json or (HERE / "results" / instruction_set() / "cpu.json" if whole else None)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    began, facts = time.perf_counter(), machine(given.threads)
    sections = {name: measured(name, given.smoke, given.options) for name in SECTIONS if name in chosen}
    facts |= {"load_at_the_end": os.getloadavg()[0], "wall_seconds": round(time.perf_counter() - began, 1)}
    facts["cpu_seconds"] = round(sum(section["cpu_seconds"] for section in sections.values()), 1)
    # Whoever reads a log, or has a narrow terminal, gets whole lines as well.
    console = Console()
    console.width = max(WIDTH, console.width)
    console.print(table(sections))
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()), style="dim", highlight=False)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        found = {"machine": facts, "smoke": given.smoke, "sections": sections}
        if given.options and target.exists():
            ((name, part),) = sections.items()
            found = added(json.loads(target.read_text()), name, part | {"machine": facts})
        target.write_text(json.dumps(found, indent=1) + "\n")
        console.print(f"written to {target}")
    if any(section.get("failed") for section in sections.values()):
        raise SystemExit("some sections failed, see above")


if __name__ == "__main__":
    main()
