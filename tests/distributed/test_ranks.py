"""Runs on ranks of torchrun equal those of one process: to the bit with `exact`, else but for rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ranked_runs import Place, torchrun, torchrun_all
from small_runs import assert_same_run, grouprl, metrics, rollouts

EXACT = {"distributed": {"exact": True}}
SHARD = {"distributed": {"shard": True}}
PPO = {"algorithm": {"name": "ppo"}}
ALMOST = ("plain-1", "plain-2", "shard-2")


def ends_well(place: Place, *commands: list[str]) -> None:
    for command in commands:
        one = grouprl(*command)
        assert one.code == 0, one.text


def assert_almost_same_run(left: Path, right: Path) -> None:
    """Equal but for the rounding of sums: the same tokens, and metrics near each other."""
    ours, theirs = metrics(left), metrics(right)
    assert [row["loss"] for row in theirs] == pytest.approx([row["loss"] for row in ours], abs=1e-5)
    assert [row["grad_norm"] for row in theirs] == pytest.approx([row["grad_norm"] for row in ours], rel=1e-3)
    ids = "SELECT step, group_index, completion_index, token_ids FROM completions ORDER BY 1, 2, 3"
    assert rollouts(left, ids) == rollouts(right, ids)


def test_two_ranks_are_one_process(tiny: Path, tmp_path: Path) -> None:
    place = Place(tiny, tmp_path)
    many = torchrun_all(
        2,
        [
            place.arguments("exact-2", **EXACT),
            place.arguments("plain-2"),
            place.arguments("shard-2", **SHARD),
            place.arguments("ppo-2", **PPO, **EXACT),
        ],
    )
    assert many.code == 0, many.text
    ends_well(
        place, place.arguments("exact-1", **EXACT), place.arguments("plain-1"), place.arguments("ppo-1", **PPO, **EXACT)
    )
    for name in ("exact", "ppo"):
        assert_same_run(place.runs / f"{name}-1", place.runs / f"{name}-2", step=3)
    for name in ("plain-2", "shard-2"):
        assert_almost_same_run(place.runs / "plain-1", place.runs / name)
    assert many.out.count("Report:") == 4  # rank 0 alone writes
    memory = {name: json.loads((place.runs / name / "summary.json").read_text())["networks_mib"] for name in ALMOST}
    for network in ("policy", "reference", "optimizer"):
        assert memory["plain-2"][network] == memory["plain-1"][network]
        assert memory["shard-2"][network] == pytest.approx(memory["plain-1"][network] / 2, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_any_number_of_ranks_is_one_process(tiny: Path, tmp_path: Path, ranks: int) -> None:
    place = Place(tiny, tmp_path)
    many = torchrun(ranks, place.arguments("many", steps=20, **EXACT))
    assert many.code == 0, many.text
    ends_well(place, place.arguments("one", steps=20, **EXACT))
    assert_same_run(place.runs / "one", place.runs / "many", step=20)
    assert json.loads((place.runs / "many" / "summary.json").read_text())["steps"] == 20
