"""The table of docs/evidence.md that compares algorithms is what benchmarks/results has of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_docs_is_what_was_measured() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "comparison_family.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    section = text[text.index("## Algorithms") : text.index("### The others")]
    assert found["command"] in section
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| " in line]
    table = {row[0]: row for row in rows[1:]}
    assert list(table) == [variant["name"] for variant in found["variants"]]
    for variant in found["variants"]:
        _, greedy, _, _, last, seeds, steps, tokens, seconds, per_step, peak = table[variant["name"]]
        mean = {name: one["mean"] for name, one in variant["figures"].items()}
        assert f"{100 * mean['greedy_accuracy']:.1f} %" == greedy
        assert f"{100 * mean['sampled_accuracy']:.1f} %" == last
        assert ", ".join(f"{100 * seed:.1f}" for seed in variant["figures"]["sampled_accuracy"]["by_seed"]) == seeds
        assert (f"{mean['sampled_steps_to_90']:.1f}", f"{mean['sampled_tokens_to_90']:,.0f}") == (steps, tokens)
        assert (f"{mean['sampled_seconds_to_90']:.1f}", f"{mean['seconds_per_step']:.2f}") == (seconds, per_step)
        assert f"{mean['peak_rss_mib']:,.0f}" == peak
    prose = " ".join(re.sub(r"[*`]", "", section).split())
    assert all(sentence in prose for sentence in found["sentences"])
