"""Runs on ranks of torchrun equal those of one process: to the bit with `exact`, else but for rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ranked_runs import Place, torchrun, torchrun_all
from small_runs import assert_almost_same_run, assert_same_run, grouprl

EXACT = {"distributed": {"exact": True}}
SHARD = {"distributed": {"shard": True}}
ALMOST = ("plain-1", "plain-2", "shard-2")


def ends_well(*commands: list[str]) -> None:
    for command in commands:
        one = grouprl(*command)
        assert one.code == 0, one.text


def test_two_ranks_are_one_process(tiny: Path, tmp_path: Path) -> None:
    place = Place(tiny, tmp_path)
    many = torchrun_all(
        2,
        [
            place.arguments("exact-2", **EXACT),
            place.arguments("plain-2"),
            place.arguments("shard-2", **SHARD),
        ],
    )
    assert many.code == 0, many.text
    ends_well(place.arguments("exact-1", **EXACT), place.arguments("plain-1"))
    assert_same_run(place.runs / "exact-1", place.runs / "exact-2", step=3)
    for name in ("plain-2", "shard-2"):
        assert_almost_same_run(place.runs / "plain-1", place.runs / name)
    assert many.out.count("Report:") == 3  # rank 0 alone writes
    memory = {name: json.loads((place.runs / name / "summary.json").read_text())["networks_mib"] for name in ALMOST}
    for network in ("policy", "reference", "optimizer"):
        assert memory["plain-2"][network] == memory["plain-1"][network]
        assert memory["shard-2"][network] == pytest.approx(memory["plain-1"][network] / 2, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4, 8])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_any_number_of_ranks_is_one_process(tiny: Path, tmp_path: Path, ranks: int, algorithm: str) -> None:
    place = Place(tiny, tmp_path)
    # 20 steps at the rate of the other tests end in an explosion.
    changes = {**EXACT, "algorithm": {"name": algorithm}, "learner": {"learning_rate": 1e-4, "micro_batch_tokens": 48}}
    many = torchrun(ranks, place.arguments("many", steps=20, **changes))
    assert many.code == 0, many.text
    ends_well(place.arguments("one", steps=20, **changes))
    assert_same_run(place.runs / "one", place.runs / "many", step=20)
    assert json.loads((place.runs / "many" / "summary.json").read_text())["steps"] == 20
