"""Every named algorithm, and one that nobody named, on the page: the numbers and the words are the algorithm's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from explaining import ask, lab
from grouprl.algorithms.advantages import CompletionAdvantage, Statistics, group_statistics
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm
from grouprl.lab.explain_typed import COMPARING, explained_advantages, pass_rate_curves, typed_walk
from grouprl.lab.report.groups import one_group
from grouprl.lab.report.worked import CompletionParts, against_record
from lab_runs import Made, make_run

REWARDS = (1.0, 0.0, 0.25, math.nan)


@dataclass(frozen=True)
class BestAdvantage(CompletionAdvantage):
    """The reward less the best of the group, over its range."""

    baseline: Literal["best"] = option("best", "subtracted: best of the group")
    scale: Literal["range"] = option("range", "divides: range of the group")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        found = group_statistics(rewards_N, groups_N, scale="none")
        valid_N = rewards_N[~rewards_N.isnan()]
        best_N, range_N = (
            torch.full_like(found.mean, float(one)) for one in (valid_N.max(), valid_N.max() - valid_N.min())
        )
        return replace(found, baseline_N=best_N, divisor_N=range_N)

    @property
    def formula(self) -> str:
        return "(r - max(group)) / range(group)"


MADE_UP = Algorithm("made_up", advantage=BestAdvantage(), kl=None)
COMPARED = [*COMPARING.values(), MADE_UP]
names = [one.name for one in COMPARED]


def test_an_algorithm_has_the_name_of_its_file() -> None:
    assert [one.name for one in NAMED.values()] == list(NAMED)


@pytest.mark.parametrize("algorithm", COMPARED, ids=names)
def test_baseline_divisor_and_advantages_are_the_algorithms(algorithm: Algorithm) -> None:
    rewards_N, groups_N = torch.tensor(REWARDS, dtype=torch.float64), torch.zeros(len(REWARDS), dtype=torch.int64)
    own = algorithm.advantage.statistics(rewards_N, groups_N)  # type: ignore[attr-defined]
    found = explained_advantages(REWARDS, [algorithm])["algorithms"][algorithm.name]
    assert found["baselines"] == [*own.baseline_N[:3].tolist(), None]
    assert found["divisors"] == [*own.divisor_N[:3].tolist(), None]
    assert found["advantages"] == [*own.advantages(rewards_N)[:3].tolist(), None]
    assert (found["without_signal"], found["formula"]) == (None, algorithm.advantage.formula)
    assert algorithm.advantage.formula in found["sentence"]


@pytest.mark.parametrize("algorithm", COMPARED, ids=names)
def test_a_typed_group_is_walked_through(algorithm: Algorithm) -> None:
    found = typed_walk(REWARDS, algorithm, 1.0)
    stages = found["stages"]
    assert found["algorithm"]["formula"] == algorithm.advantage.formula
    shown = stages["statistics"]["compared"]["advantages"]
    assert [one or 0.0 for one in shown] == stages["advantages"]["completions"]
    best = stages["update"]["completions"][0]
    assert best["after"] >= best["before"]


@pytest.mark.parametrize("algorithm", COMPARED, ids=names)
def test_a_group_weighs_by_its_pass_rate(algorithm: Algorithm) -> None:
    found = pass_rate_curves(4, [algorithm])["algorithms"][algorithm.name]
    assert len(found["by_correct"]) == 5
    assert found["by_correct"][1] > 0


def test_the_page_offers_every_algorithm_with_its_formula(tmp_path: Path) -> None:
    offered = ask(lab(tmp_path), "algorithms")["algorithms"]
    assert {one["name"]: one["formula"] for one in offered} == {
        name: one.advantage.formula for name, one in COMPARING.items()
    }


@pytest.mark.parametrize("name", COMPARING)
def test_the_routes_know_every_algorithm(tmp_path: Path, name: str) -> None:
    page = lab(tmp_path)
    assert list(ask(page, f"advantages?rewards=1,0,0,1&algorithms={name}")["algorithms"]) == [name]
    assert ask(page, f"group?rewards=1,0,0,1&algorithm={name}")["algorithm"]["name"] == name
    assert list(ask(page, f"pass_rate?algorithms={name}")["algorithms"]) == [name]


@pytest.mark.parametrize("algorithm", [*NAMED.values(), MADE_UP], ids=[*NAMED, "made_up"])
def test_a_recorded_group_of_every_algorithm(algorithm: Algorithm) -> None:
    scored = [CompletionParts(0, None if math.isnan(reward) else reward) for reward in REWARDS]
    compares = algorithm.name in names
    recorded = [0.0] * len(scored)
    if compares:
        rewards_N, groups_N = torch.tensor(REWARDS, dtype=torch.float64), torch.zeros(len(REWARDS), dtype=torch.int64)
        recorded = algorithm.advantage.statistics(rewards_N, groups_N).advantages(rewards_N).tolist()  # type: ignore[attr-defined]
    found = against_record(0, scored, recorded, algorithm)
    assert (found["mean"], found["formula"]) == (pytest.approx(5 / 12), algorithm.advantage.formula)
    if compares:
        assert found["agree"]
    else:
        assert found["agree"] is not True
        assert found["why"]


# MaxRL: two right of four; less the mean 1/2, over the mean 1/2


def test_maxrl_divides_by_the_mean(tmp_path: Path) -> None:
    found = ask(lab(tmp_path), "advantages?rewards=1,0,0,1&algorithms=maxrl")["algorithms"]["maxrl"]
    assert (found["baselines"], found["divisors"]) == ([0.5] * 4, [0.5] * 4)
    assert found["advantages"] == [1, -1, -1, 1]
    assert (found["mean_of"], found["deviation_of"]) == ("group", None)


def test_a_recorded_run_of_maxrl(tmp_path: Path) -> None:
    made = Made((1.0, 0.0, 0.0, 0.0), advantages=(3.0, -1.0, -1.0, -1.0))
    found = one_group(make_run(tmp_path / "run", [made], config="algorithm: {name: maxrl}\n"), 1, 0)["statistics"]
    assert (found["baselines"], found["divisors"], found["agree"]) == ([0.25] * 4, [0.25] * 4, True)


def test_rewards_that_an_algorithm_cannot_compare_are_refused_with_its_sentence(tmp_path: Path) -> None:
    said = "algorithm maxrl: expected rewards of 0 or more, got -1"
    page = lab(tmp_path)
    answer = page.get("/api/explain/group?rewards=-1,0&algorithm=maxrl")
    assert (answer.status_code, answer.json()["error"]) == (400, said)
    found = ask(page, "advantages?rewards=-1,0&algorithms=grpo,maxrl")["algorithms"]
    assert (found["maxrl"]["advantages"], found["maxrl"]["without_signal"]) == (None, said)
    assert found["grpo"]["advantages"] is not None
    run = make_run(tmp_path / "run", [Made((-1.0, 0.0))], config="algorithm: {name: maxrl}\nrollout: {max_tokens: 4}\n")
    shown = one_group(run, 1, 0)["statistics"]
    assert (shown["advantages"], shown["agree"], shown["why"], shown["mean"]) == (None, None, said, -0.5)
    assert ask(page, "group?run=run&step=1")["stages"]["statistics"]["compared"]["without_signal"] == said
