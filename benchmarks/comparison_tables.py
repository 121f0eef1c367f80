"""The tables of docs/comparison.md, from the summaries of comparisons.

grouprl compare compare_family && python benchmarks/comparison_tables.py runs/compare_family
"""

import argparse
import json
from pathlib import Path

COLUMNS = ("variant", "greedy after", "difference over problems", "over seeds", "sampled, last tenth", "by seed")
REACHED = ("sampled to 90 %: steps", "tokens")
COSTS = ("seconds", "seconds a step", "peak MiB")


def share(figure: dict | None) -> str:
    if figure is None:
        return "-"
    return f"{100 * figure['mean']:.1f} %"


def points(difference: dict | None) -> str:
    if difference is None or difference["interval"] is None:
        return "-"
    low, high = difference["interval"]
    return f"{100 * difference['mean']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def number(figure: dict | None, form: str, seeds: int) -> str:
    if figure is None:
        return "never"
    some = len(figure["by_seed"])
    return format(figure["mean"], form) + (f" ({some} of {seeds} seeds)" if some < seeds else "")


def by_seed(figure: dict | None) -> str:
    return "-" if figure is None else ", ".join(f"{100 * value:.1f}" for value in figure["by_seed"].values())


def row(name: str, variant: dict, seeds: int, costs: bool) -> list[str]:
    figures, against = variant["figures"], variant["against_baseline"].get("greedy_accuracy") or {}
    cells = [
        name,
        share(figures.get("greedy_accuracy")),
        points(against.get("over_problems")),
        points(against.get("over_seeds")),
        share(figures.get("sampled_accuracy")),
        by_seed(figures.get("sampled_accuracy")),
        number(figures.get("sampled_steps_to_90"), ".1f", seeds),
        number(figures.get("sampled_tokens_to_90"), ",.0f", seeds),
    ]
    if costs:
        cells.append(number(figures.get("sampled_seconds_to_90"), ".1f", seeds))
        cells.append(number(figures.get("seconds_per_step"), ".2f", seeds))
        cells.append(number(figures.get("peak_rss_mib"), ",.0f", seeds))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("comparisons", type=Path, nargs="+")
    parser.add_argument("--costs", action="store_true", help="seconds and memory as well")
    given = parser.parse_args()
    for folder in given.comparisons:
        summary = json.loads((folder / "summary.json").read_text())
        head = (*COLUMNS, *REACHED, *(COSTS if given.costs else ()))
        rows = [row(name, variant, len(summary["seeds"]), given.costs) for name, variant in summary["variants"].items()]
        print(f"\n{folder.name}: {summary['verdict']}\n")
        for cells in (head, ["---"] * len(head), *rows):
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
