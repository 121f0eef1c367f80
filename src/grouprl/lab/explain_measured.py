"""What GRPO and PPO came to when both were run: comparisons below the root, or else the shipped figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grouprl.compare.read import COMPARISON_FILE, RecordedComparison, Variant, figure, read_comparison
from grouprl.compare.report import comparison_verdict
from grouprl.config.algorithm import flat
from grouprl.lab.runs import parse_config
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_json
from grouprl.types import UserError

SHIPPED = Path(__file__).parents[1] / "report" / "static" / "comparison.json"
FIGURES = (
    "greedy_accuracy",
    "sampled_accuracy",
    "sampled_steps_to_90",
    "sampled_tokens_to_90",
    "sampled_seconds_to_90",
    "seconds_per_step",
    "peak_rss_mib",
)


def measured_comparisons(root: Path) -> dict[str, Any]:
    """Figures of runs with a critic beside runs without one.

    Args:
        root: the lab's folder of runs; comparisons are folders directly below it.

    Returns:
        `source`: "runs" or "shipped"; `comparisons`, each with `name`, `seeds`, `verdict` and `variants`: name,
        algorithm, updates of a batch, settings, and of each of `FIGURES` `mean`, `interval` (95 % over seeds, null
        where unknown) and `by_seed`. What is shipped has its `command`, `setting`, `machine` and `sentences` as well.
    """
    found = list(_comparisons(root))
    mixed = [one for one in found if {bool(variant["critic"]) for variant in one["variants"]} == {True, False}]
    if mixed:
        return {"source": "runs", "comparisons": mixed}
    return {"source": "shipped", "comparisons": [read_json(SHIPPED)]}


def _comparisons(root: Path) -> Iterator[dict[str, Any]]:
    """Those that can be read: what is wrong with another one is said where its runs are looked at."""
    for given in sorted(root.glob(f"*/{COMPARISON_FILE}")):
        folder = given.parent
        try:
            # Nothing outside the root is read, and a link may lead there.
            if not any(path.is_symlink() for path in (folder, *folder.glob("*"), *folder.glob("*/*"))):
                yield _shown(read_comparison(folder))
        except (UserError, OSError):
            continue


def _shown(comparison: RecordedComparison) -> dict[str, Any]:
    return {
        "name": comparison.directory.name,
        "seeds": list(comparison.seeds),
        "verdict": comparison_verdict(comparison),
        "variants": [_variant(variant) for variant in comparison.finished],
    }


def _variant(variant: Variant) -> dict[str, Any]:
    run = next(iter(variant.runs.values()))
    algorithm = parse_config(run.config, RunDirectory(run.directory).config).get("algorithm")
    if not isinstance(algorithm, dict):
        algorithm = {}
    algorithm = flat(algorithm)
    passes, minibatches = (algorithm.get(name, 1) for name in ("passes", "minibatches"))
    if type(passes) is not int or type(minibatches) is not int:
        raise UserError(
            f"{RunDirectory(run.directory).config}: expected whole numbers of passes and minibatches, "
            f"got {passes!r:.60} and {minibatches!r:.60}: restore the file"
        )
    figures = {}
    for name in FIGURES:
        one = figure(variant, name)
        figures[name] = {"mean": one.mean, "interval": one.interval, "by_seed": list(one.by_seed.values())}
    return {
        "name": variant.name,
        "algorithm": algorithm.get("name"),
        "critic": None if algorithm.get("critic_kind") in (None, "none") else algorithm["critic_kind"],
        "updates": passes * minibatches,
        "settings": list(variant.settings),
        "figures": figures,
    }
