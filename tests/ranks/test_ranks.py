"""Runs on ranks of torchrun equal those of one process: to the bit with `exact`, else but for rounding."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import grouprl as package
from forked import forked
from ranked_runs import Place, refused, torchrun_all
from small_runs import ROWS, assert_almost_same_run, assert_same_run, grouprl, small_settings, write_rows
from source_tree import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import families

EXACT = {"distributed": {"exact": True}}
SHARD = {"distributed": {"shard": True}}
REWARD = "def one(completions, **columns): return [1.0] * len(completions)\n"
SIZES = "def sizes(completions, **_): return [float(sum(len(m['content']) for m in one) % 7) for one in completions]\n"
ALGORITHMS = ("grpo", "ppo")
ALMOST = ("plain-1", "plain-2", "shard-2")


def different_folders(place: Place) -> Path:
    """A folder for each of two ranks, in which the files differ: model, code."""
    for rank in range(2):
        folder = place.folder / "ranks" / str(rank)
        for name in ("same", "other"):
            shutil.copytree(place.model, folder / name / "model")
            write_rows(folder / name / "rows.jsonl", ROWS)
            (folder / name / "reward.py").write_text(REWARD)
    other = place.folder / "ranks" / "1" / "other"
    weights = load_file(other / "model" / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] += 1.0
    save_file(weights, other / "model" / "model.safetensors", {"format": "pt"})
    with (other / "reward.py").open("a") as code:
        code.write("# another\n")
    return place.folder / "ranks"


def command(place: Place, name: str, *more: str, model: str = "same", code: str = "same") -> list[str]:
    data = ["task=jsonl", "task.path=same/rows.jsonl", *small_settings(place.runs, steps=1)]
    files = ["--model", f"{model}/model", "--reward", f"{code}/reward.py:one"]
    return ["train", *files, "--name", name, *data, *more]


def episodes(place: Place, name: str) -> list[str]:
    """The command of a run whose completions have several turns."""
    reward = place.folder / "sizes.py"
    reward.write_text(SIZES)
    changes: dict[str, Any] = {
        "model": {"chat_template": "tools"},
        "rollout": {"problems_per_step": 4, "group_size": 4, "max_tokens": 24, "stop": ["e"]},
        "environment": {"max_tokens": 140, "turns": 3},
    }
    settings = small_settings(place.runs, steps=3, **changes, **EXACT)
    given = ["--model", str(place.model), "--name", name, "--reward", f"{reward}:sizes"]
    return ["train", *given, "task=guess_number", *settings]


@pytest.fixture(scope="module")
def place(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tiny, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def refusing(place: Place) -> str:
    """What two ranks say when they refuse some commands: forks of this process, which a torchrun would start."""
    commands = [
        command(place, "settings", "seed={rank}"),
        command(place, "model", model="other"),
        command(place, "code", code="other"),
    ]
    folders = str(different_folders(place))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def rank(number: int) -> None:
        package.__parent__ = os.getppid()
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for one in commands:
            refused(folders, one)

    with forked(partial(rank, 0)) as first, forked(partial(rank, 1)) as second:
        said = first.out.read() + second.out.read() + first.err.read() + second.err.read()
        assert [first.wait(), second.wait()] == [0, 0], said
    return said


@pytest.mark.slow
def test_two_ranks_are_one_process(place: Place) -> None:
    runs = (place.arguments("exact-2", **EXACT), place.arguments("plain-2"), place.arguments("shard-2", **SHARD))
    two_ranks = torchrun_all(2, (*runs, episodes(place, "talk-2")))
    assert two_ranks.code == 0, two_ranks.out
    for alone in (place.arguments("exact-1", **EXACT), place.arguments("plain-1"), episodes(place, "talk-1")):
        assert grouprl(*alone).code == 0
    for name in ("exact", "talk"):
        assert_same_run(place.runs / f"{name}-1", place.runs / f"{name}-2", step=3)
    for name in ("plain-2", "shard-2"):
        assert_almost_same_run(place.runs / "plain-1", place.runs / name)
    assert two_ranks.out.count("Report:") == 4  # rank 0 alone writes
    memory = {name: json.loads((place.runs / name / "summary.json").read_text())["networks_mib"] for name in ALMOST}
    for network in ("policy", "reference", "optimizer"):
        assert memory["plain-2"][network] == memory["plain-1"][network]
        assert memory["shard-2"][network] == pytest.approx(memory["plain-1"][network] / 2, rel=0.01)


@pytest.mark.parametrize(
    ("name", "what", "values"),
    [
        ("settings", "settings and versions", r"'seed: 0' on rank 0 and 'seed: 1'"),
        ("model", "model, problems and teacher", r"'model: (\S+)' on rank 0 and 'model: (?!\1)\S+'"),
        ("code", "code", r"'\"other/reward.py\": (\S+)' on rank 0 and '\"other/reward.py\": (?!\1)\S+'"),
    ],
)
def test_ranks_that_differ_are_refused(place: Place, refusing: str, name: str, what: str, values: str) -> None:
    for rank in (0, 1):  # each knows it; of the ranks of a real run one says it
        said = f"rank {rank} refuses {name}: expected the same {what} on every rank, got {values} on rank 1: start all"
        assert re.search(said, refusing), refusing
    assert not (place.runs / name).exists()


@pytest.fixture(scope="module")
def alone(place: Place) -> Path:
    """The runs of one process that those of many ranks equal."""
    for name in ALGORITHMS:
        end = grouprl(*place.arguments(f"{name}-one", **many_steps(name)))
        assert end.code == 0, end.text
    return place.runs


def many_steps(algorithm: str) -> dict[str, Any]:
    # The rate of the other tests ends in an explosion.
    return {
        **EXACT,
        "steps": 8,
        "algorithm": {"name": algorithm},
        "learner": {"learning_rate": 1e-4, "micro_batch_tokens": 48},
    }


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_any_number_of_ranks_is_one_process(place: Place, alone: Path, ranks: int) -> None:
    names = {name: f"{name}-{ranks}-ranks" for name in ALGORITHMS}
    many = torchrun_all(ranks, [place.arguments(run, **many_steps(name)) for name, run in names.items()])
    assert many.code == 0, many.text
    for name, run in names.items():
        assert_same_run(alone / f"{name}-one", alone / run, step=8)
        assert json.loads((alone / run / "summary.json").read_text())["steps"] == 8


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


@pytest.mark.slow
def test_a_teacher_teaches_alike_on_two_ranks(place: Place) -> None:
    changes = {"algorithm": {"distill_coef": 0.5, "distill_where": "all"}}
    gold = "task.arguments.gold_column=number"
    two = [place.arguments("taught-exact-2", gold, **changes, **EXACT), place.arguments("taught-2", gold, **changes)]
    ended = torchrun_all(2, two)
    assert ended.code == 0, ended.out
    for one in (
        place.arguments("taught-exact-1", gold, **changes, **EXACT),
        place.arguments("taught-1", gold, **changes),
    ):
        assert grouprl(*one).code == 0
    assert_same_run(place.runs / "taught-exact-1", place.runs / "taught-exact-2", step=3)
    assert_almost_same_run(place.runs / "taught-1", place.runs / "taught-2")
    (row, *_) = (place.runs / "taught-2" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["distill_share"] == 1.0
