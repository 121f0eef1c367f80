"""Every family of benchmarks/results/families.md is loaded, compared with its own forward pass, adapted and trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from source_tree import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import families

DOCUMENTED = {
    cells[1].strip(): [cell.strip() for cell in cells[2:-1]]
    for line in (ROOT / "benchmarks" / "results" / "families.md").read_text(encoding="utf-8").splitlines()
    if len(cells := line.split("|")) == 9
}
# One of each kind: windows, sinks and experts, a text tower, weights that lie transposed, a state of its
# own, a recurrent model that cannot be followed.
FAST = ("gpt_oss", "qwen2_5_vl", "gpt2", "lfm2", "rwkv")


def test_every_family_is_documented() -> None:
    assert list(DOCUMENTED)[2:] == list(families.FAMILIES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in families.FAMILIES]
)
def test_a_family_does_what_the_table_says(name: str, tmp_path: Path) -> None:
    found = families.examine(name, tmp_path)
    form, window, learner, sampler, lora, trains = DOCUMENTED[name]
    assert (found.form, found.window, found.lora, found.trains) == (form, window, lora, trains)
    for measured, stated in ((found.learner_gap, learner), (found.sampler_gap, sampler)):
        assert measured < 2e-6  # rounding of float32 in another order
        assert not stated or float(stated) < 2e-6
