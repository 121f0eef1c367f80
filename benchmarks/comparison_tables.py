"""The tables of docs/evidence.md, from the summaries of comparisons.

    python benchmarks/comparison_tables.py runs/algorithms --costs --keep    # docs/evidence.md has the comparison
    python benchmarks/comparison_tables.py                         those that were kept

`--keep` copies what the table needs to benchmarks/results/compare_NAME.json; measured claims replace theirs in
claims.json, so a comparison may have answered some alone: p-values are corrected over all that claims.json has.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from made_up import made_up_comparison

from grouprl.tools.compare.claims import answer_claims, claims_summary, claims_table, correct_over_table
from grouprl.tools.compare.read import RecordedComparison, Variant
from grouprl.tools.compare.report import write_comparison
from grouprl.tools.compare.settings import load_comparison

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("variant", "greedy after", "difference over problems", "over seeds", "sampled, last tenth", "by seed")
REACHED = ("sampled to 90 %: steps", "tokens")
COSTS = ("seconds", "seconds a step", "peak MiB")


def share(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "-"
    return f"{100 * figure['mean']:.1f} %"


def points(difference: dict[str, Any] | None) -> str:
    if difference is None or difference["interval"] is None:
        return "-"
    low, high = difference["interval"]
    return f"{100 * difference['mean']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def number(figure: dict[str, Any] | None, form: str, seeds: int) -> str:
    if figure is None:
        return "never"
    some = len(figure["by_seed"])
    return format(figure["mean"], form) + (f" ({some} of {seeds} seeds)" if some < seeds else "")


def by_seed(figure: dict[str, Any] | None) -> str:
    return "-" if figure is None else ", ".join(f"{100 * value:.1f}" for value in figure["by_seed"].values())


def row(name: str, variant: dict[str, Any], seeds: int, costs: bool) -> list[str]:
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


def table(summary: dict[str, Any], *, costs: bool) -> Iterator[str]:
    """The lines of a comparison's table."""
    head = (*COLUMNS, *REACHED, *(COSTS if costs else ()))
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for name, variant in summary["variants"].items():
        yield f"| {' | '.join(row(name, variant, len(summary['seeds']), costs))} |"


def needed(summary: dict[str, Any], *, costs: bool) -> dict[str, Any]:
    """Of a summary, what its table is made of."""
    variants = {
        name: {"figures": variant["figures"], "against_baseline": variant["against_baseline"]}
        for name, variant in summary["variants"].items()
    }
    return {"verdict": summary["verdict"], "costs": costs, "seeds": summary["seeds"], "variants": variants}


def kept() -> dict[str, dict[str, Any]]:
    """The comparisons of docs/evidence.md whose summaries were kept, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("compare_*.json"))}


def claims() -> list[str]:
    """The table of the recipe's claims, with what was kept of their measurements."""
    config = load_comparison(["claims"], None)
    variants = tuple(Variant(name, (), {}) for name in config.names)
    unmeasured = RecordedComparison(Path(), config.seeds, variants, config.claims)
    rows, kept_rows = claims_summary(answer_claims(unmeasured)), kept_claims()
    return list(claims_table([row | kept_rows.get(row["name"], {}) for row in rows]))


def kept_claims() -> dict[str, dict[str, Any]]:
    """What was measured of each claim, by its name."""
    path = RESULTS / "claims.json"
    return json.loads(path.read_text()) if path.exists() else {}


def keep_claims(rows: list[dict[str, Any]]) -> None:
    """Replaces what was kept of the claims that were measured here, and corrects all that are kept together."""
    new = {row["name"]: {key: row[key] for key in ("measured", "verdict")} for row in rows if row["measured"]}
    table = kept_claims() | {name: one for name, one in new.items() if one["verdict"] != "not measured yet"}
    corrected = dict(zip(table, correct_over_table(list(table.values())), strict=True))
    (RESULTS / "claims.json").write_text(json.dumps(corrected, indent=1) + "\n")


def show(name: str, summary: dict[str, Any], *, costs: bool) -> None:
    print(f"\n{name}: {summary['verdict']}\n", *table(summary, costs=costs), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("comparisons", type=Path, nargs="*", help="folders of comparisons; none: those that were kept")
    parser.add_argument("--costs", action="store_true", help="seconds and memory as well")
    parser.add_argument("--keep", action="store_true", help="copy what the tables need to benchmarks/results")
    parser.add_argument("--smoke", action="store_true", help="a made-up comparison: whether it runs")
    given = parser.parse_args()
    for folder in given.comparisons:
        summary = json.loads((folder / "summary.json").read_text())
        if summary["claims"]:
            print(*claims_table(summary["claims"]), sep="\n")
            if given.keep:
                keep_claims(summary["claims"])
            continue
        show(folder.name, summary, costs=given.costs)
        if given.keep:
            name = f"{folder.name if folder.name.startswith('compare_') else f'compare_{folder.name}'}.json"
            (RESULTS / name).write_text(json.dumps(needed(summary, costs=given.costs), indent=1) + "\n")
    if given.smoke:
        with tempfile.TemporaryDirectory() as place:
            folder = made_up_comparison(Path(place))
            write_comparison(folder)
            summary = needed(json.loads((folder / "summary.json").read_text()), costs=True)
            show(folder.name, summary, costs=True)
    elif not given.comparisons:
        for name, summary in kept().items():
            show(name, summary, costs=summary["costs"])
        print("", *claims(), sep="\n")


if __name__ == "__main__":
    main()
