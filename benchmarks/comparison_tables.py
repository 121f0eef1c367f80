"""The tables of docs/comparison.md, from the summaries of comparisons.

grouprl compare compare_family && python benchmarks/comparison_tables.py runs/compare_family
"""

import argparse
import json
from pathlib import Path

HEAD = (
    "| variant | greedy after | difference over problems | over seeds | sampled, last tenth | sampled to 90 %: steps | "
    "tokens | seconds | seconds a step | peak MiB |\n|---|---|---|---|---|---|---|---|---|---|"
)


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


def row(name: str, variant: dict, seeds: int) -> str:
    figures, against = variant["figures"], variant["against_baseline"].get("greedy_accuracy") or {}
    cells = [
        name,
        share(figures.get("greedy_accuracy")),
        points(against.get("over_problems")),
        points(against.get("over_seeds")),
        share(figures.get("sampled_accuracy")),
        number(figures.get("sampled_steps_to_90"), ".1f", seeds),
        number(figures.get("sampled_tokens_to_90"), ",.0f", seeds),
        number(figures.get("sampled_seconds_to_90"), ".1f", seeds),
        number(figures.get("seconds_per_step"), ".2f", seeds),
        number(figures.get("peak_rss_mib"), ",.0f", seeds),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("comparisons", type=Path, nargs="+")
    for folder in parser.parse_args().comparisons:
        summary = json.loads((folder / "summary.json").read_text())
        rows = [row(name, variant, len(summary["seeds"])) for name, variant in summary["variants"].items()]
        print(f"\n{folder.name}: {summary['verdict']}\n\n{HEAD}", *rows, sep="\n")


if __name__ == "__main__":
    main()
