"""The loss that balances experts on ranks of torchrun is that of one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ranked_runs import Place, torchrun_all
from small_runs import assert_almost_same_run, assert_same_run, grouprl
from source_tree import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import families


@pytest.mark.slow
def test_experts_are_balanced_over_all_ranks(tmp_path: Path) -> None:
    place = Place(families.family_folder(tmp_path, "mixtral"), tmp_path)
    balanced = {"algorithm": {"router_aux_coef": 0.5}}
    exact, shard = {"distributed": {"exact": True}}, {"distributed": {"shard": True}}
    runs = {
        "exact-2": place.arguments("exact-2", **balanced, **exact),
        "shard-2": place.arguments("shard-2", **balanced, **shard),
    }
    ended = torchrun_all(2, list(runs.values()))
    assert ended.code == 0, ended.out
    for alone in (place.arguments("exact-1", **balanced, **exact), place.arguments("plain-1", **balanced)):
        assert grouprl(*alone).code == 0
    assert_same_run(place.runs / "exact-1", place.runs / "exact-2", step=3)
    assert_almost_same_run(place.runs / "plain-1", place.runs / "shard-2")
