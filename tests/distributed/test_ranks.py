"""Runs on ranks of torchrun equal those of one process: to the bit with `exact`, else but for rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ranked_runs import Place, torchrun, torchrun_all
from small_runs import assert_same_run, grouprl, metrics, rollouts

EXACT = {"distributed": {"exact": True}}
PPO = {"algorithm": {"name": "ppo"}}


def ends_well(place: Place, *commands: list[str]) -> None:
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
            place.arguments("ppo-2", **PPO, **EXACT),
        ],
    )
    assert many.code == 0, many.text
    ends_well(
        place, place.arguments("exact-1", **EXACT), place.arguments("plain-1"), place.arguments("ppo-1", **PPO, **EXACT)
    )
    for name in ("exact", "ppo"):
        assert_same_run(place.runs / f"{name}-1", place.runs / f"{name}-2", step=3)
    one, two = (metrics(place.runs / f"plain-{ranks}") for ranks in (1, 2))
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], abs=1e-5)
    ids = "SELECT step, group_index, completion_index, token_ids FROM completions WHERE step = 1 ORDER BY 1, 2, 3"
    assert rollouts(place.runs / "plain-1", ids) == rollouts(place.runs / "plain-2", ids)
    assert many.out.count("Report:") == 3  # rank 0 alone writes


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_any_number_of_ranks_is_one_process(tiny: Path, tmp_path: Path, ranks: int) -> None:
    place = Place(tiny, tmp_path)
    many = torchrun(ranks, place.arguments("many", steps=20, **EXACT))
    assert many.code == 0, many.text
    ends_well(place, place.arguments("one", steps=20, **EXACT))
    assert_same_run(place.runs / "one", place.runs / "many", step=20)
    assert json.loads((place.runs / "many" / "summary.json").read_text())["steps"] == 20
