"""Comparisons: what is planned, what is refused before anything runs, and the runs themselves, each a process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from grouprl.config.run import RunConfig, load_config
from grouprl.supervised.settings import SftConfig
from grouprl.tools.compare.settings import CompareConfig, load_comparison, varied
from grouprl.tools.compare.variants import compare, planned_runs
from grouprl.types import UserError
from small_runs import Ended, assert_same_run, grouprl, metrics, rollouts, tree

RECIPES = Path(__file__).parents[2] / "src" / "grouprl" / "recipes"


def resolve(given: Sequence[str]) -> RunConfig:
    files = [RECIPES / f"{text}.yaml" for text in given if "=" not in text]
    return load_config(RunConfig, files, [text for text in given if "=" in text])


def test_the_bundled_comparison_can_be_planned_and_read_back(tmp_path: Path) -> None:
    config = load_comparison(["claims", "seeds=[0,1]"], None)
    runs = planned_runs(config, resolve)
    assert config.name == "claims"
    stages = sum(map(len, config.stages.values()))
    assert len(runs) == len(config.seeds) * (len(config.variants) + stages)
    runs = tuple(run for run in runs if run.variant in config.variants)
    assert all(run.config.evaluation.every for run in runs)
    sizes = {run.config.rollout.group_size * run.config.rollout.problems_per_step for run in runs}
    assert sizes == {128}  # the same number of sampled completions in a step
    assert len({run.config.model_dump_json(exclude={"name", "seed"}) for run in runs}) == len(config.variants)
    saved = tmp_path / "comparison.json"
    saved.write_text(json.dumps(config.model_dump(mode="json")))
    assert load_comparison([str(saved)], None) == config


def test_runs_go_seed_by_seed_into_folders_and_a_variant_has_the_last_word() -> None:
    variants = {"G=2": ("rollout.group_size=2", "steps=5"), "dapo": ("algorithm=dapo",)}
    settings = ("algorithm.kl_coef=0.5", "steps=9")
    config = CompareConfig(name="c", runs_dir="/r", base=("demo",), settings=settings, seeds=(3, 1), variants=variants)
    runs = planned_runs(config, resolve)
    assert [run.directory.name for run in runs] == ["G-2-seed3", "dapo-seed3", "G-2-seed1", "dapo-seed1"]
    assert {run.directory.parent for run in runs} == {Path("/r/c")}
    assert [(run.config.seed, run.config.steps) for run in runs] == [(3, 5), (3, 9), (1, 5), (1, 9)]
    assert [run.config.algorithm.name for run in runs[:2]] == ["grpo", "dapo"]
    assert {run.config.algorithm.kl_coef for run in runs} == {0.5}
    assert (runs[0].config.rollout.group_size, runs[0].config.rollout.max_tokens) == (2, 64)  # its own, the recipe's


def test_the_command_line_changes_the_comparison_or_every_run() -> None:
    config = load_comparison(["claims", "only=[kl]", "seeds=[5]", "steps=7", "jobs=2", "name=mine"], None)
    assert (config.seeds, config.jobs, config.name, config.base) == ((5,), 2, "mine", ("ladder",))
    assert config.settings[-1] == "steps=7"
    assert config.first == "grpo"
    made = load_comparison(["demo", "steps=7"], "algorithm.clip_high=0.2,0.28")
    assert made.base == ("demo",)
    assert made.variants == {f"clip_high={one}": (f"algorithm.clip_high={one}",) for one in (0.2, 0.28)}
    assert made.first == "clip_high=0.2"


@pytest.mark.parametrize(
    ("text", "names", "changes"),
    [
        ("algorithm=grpo,dr_grpo", ["grpo", "dr_grpo"], ["algorithm=grpo", "algorithm=dr_grpo"]),
        ("a.flag=true,false", ["flag=true", "flag=false"], ["a.flag=true", "a.flag=false"]),
        ('a.text="1","x, y"', ["1", "x, y"], ['a.text="1"', "a.text=x, y"]),
        ("a.pair=[1,2],[3,4]", ["pair=[1, 2]", "pair=[3, 4]"], ["a.pair=[1, 2]", "a.pair=[3, 4]"]),
    ],
)
def test_one_variant_for_each_value(text: str, names: list[str], changes: list[str]) -> None:
    found = varied(text)
    assert list(found) == names
    assert [change for (change,) in found.values()] == changes


@pytest.mark.parametrize(
    ("given", "vary", "parts"),
    [
        (["demo"], None, ["variants: expected at least two, got none", "--vary KEY=VALUE,VALUE"]),
        (["demo"], "algorithm", ["--vary: expected KEY=VALUE,VALUE", "got 'algorithm'"]),
        (["demo"], "algorithm=grpo", ["--vary: expected KEY=VALUE,VALUE"]),
        (["demo"], "algorithm=[a,", ["--vary: expected KEY=VALUE,VALUE"]),
        (["claims"], "seed=1,2", ["--vary: expected no file with variants of its own, got claims"]),
        (["claims", "only=[kl]", "baseline=kl"], None, ["baseline: expected one of the variants grpo", "got 'kl'"]),
        (["claims", "only=[kl]", "seeds=[1,1]"], None, ["seeds: expected every seed once, got [1, 1]"]),
        (["claims", "only=[kl]", "seeds=[]", "jobs=0"], None, ["override seeds=[]: seeds", "override jobs=0: jobs"]),
        (["claims", "only=[kl]", "variants.x=steps"], None, ["variants.x: expected a list"]),
        (["claims", "only=[kl]", "stages.x=[{sft: [epochs=1]}]"], None, ["stages.x: expected `train` at the end"]),
        (
            ["claims", "only=[kl]", "stages.x=[{train: [model=stage:1]}]"],
            None,
            ["earlier stage in stage 1, got stage:1"],
        ),
        (["claims", "only=[kl]", "stages.grpo=[{train: []}]"], None, ["got 'grpo' in both: rename one"]),
        (["claims", "only=[kl]", "stages.x=[{eval: []}]"], None, ["stages.x.0.eval"]),
    ],
)
def test_a_comparison_that_makes_no_sense(given: list[str], vary: str | None, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_comparison(given, vary)
    for part in parts:
        assert part in str(caught.value)


def test_stages_have_folders_of_their_own_and_find_each_other_there() -> None:
    stages = {"cold start": [{"sft": ["ladder_sft", "epochs=2"]}, {"train": ["model=stage:1", "steps=4"]}]}
    given = ["demo", f"stages={json.dumps(stages)}", "runs_dir=/r", "name=c", "seeds=[3]"]
    config = load_comparison([*given, "rollout.group_size=2"], "algorithm=grpo,rloo")
    assert config.names == ("grpo", "rloo", "cold start")
    *_, sft, train = planned_runs(config, resolve)
    assert [run.directory.name for run in (sft, train)] == ["cold-start-seed3-1-sft", "cold-start-seed3-2-train"]
    assert (sft.verb, sft.needs, train.verb, train.needs) == ("sft", None, "train", sft)
    assert isinstance(sft.config, SftConfig)
    assert (sft.config.epochs, sft.config.seed, sft.config.out, sft.steps) == (2, 3, None, 0)
    assert isinstance(train.config, RunConfig)
    assert (train.config.model.path, train.steps) == ("/r/c/cold-start-seed3-1-sft", 4)
    assert train.config.rollout.group_size == 2  # the command line has the last word
    (wrong,) = mistakes(stages={"s": ({"sft": ("epoch=2",)}, {"train": ()})})
    assert wrong.startswith("variants s: override epoch=2: epoch: unknown key; did you mean epochs?")


def mistakes(**fields: object) -> list[str]:
    variants = {"a": ("algorithm=grpo",), "b": ("algorithm=rloo",)}
    config = CompareConfig.model_validate({"variants": variants, "seeds": (0, 1), **fields})
    with pytest.raises(UserError) as caught:
        planned_runs(config, resolve)
    head, *lines = str(caught.value).split("\n  ")
    assert head == "errors in the comparison:"
    return lines


def test_every_mistake_is_told_once_with_its_variants() -> None:
    (shared,) = mistakes(settings=("rollout.groupsize=3",))
    assert "did you mean rollout.group_size?" in shared
    assert "variants" not in shared
    own, other = mistakes(variants={"a": ("steps=0",), "b": ("steps=5",), "c": ("algorithm=rlo",)})
    assert own.startswith("variants a: override steps=0: steps: ")
    assert other.startswith("variants c: override algorithm=rlo: algorithm.name: ")
    (decided,) = mistakes(settings=("seed=3",))
    assert decided.startswith("seed=3: the comparison decides name, runs_dir, seed")
    (task,) = mistakes(variants={"a": ("task.name=gsmk8",), "b": ("steps=5",)})
    assert "did you mean 'gsm8k'?" in task


def test_names_that_would_share_a_folder_are_refused() -> None:
    config = CompareConfig(variants={"G=2": ("steps=1",), "G-2": ("steps=2",)})
    with pytest.raises(UserError, match="both in the folder G-2-seed0: rename one"):
        planned_runs(config, resolve)


# The runs

TINY = (
    "steps=3", "rollout={problems_per_step: 2, group_size: 4, max_tokens: 24}", "evaluation={problems: 3, samples: 0}",
    "checkpoint={every: 1, keep: 3}", "model.threads=1", "jobs=2",
)  # fmt: skip


VARIANTS = {"grpo": "algorithm=grpo", "no KL": "algorithm.kl_coef=0"}


def compared(runs: Path, *more: object, **others: list[str]) -> Ended:
    runs.mkdir(exist_ok=True)
    variants = {name: [change] for name, change in VARIANTS.items()} | others
    file = runs / "given.yaml"
    file.write_text(json.dumps({"name": "both", "base": ["demo"], "seeds": [0], "variants": variants}))
    return grouprl("compare", file, f"runs_dir={runs}", *TINY, *more)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    runs, wild = tmp_path_factory.mktemp("compared"), ["learner={learning_rate: 1e30, warmup_steps: 0}"]
    return runs / "both", compared(runs, wild=[*wild, "algorithm.entropy_coef=1"])


@pytest.mark.slow
def test_each_run_is_an_ordinary_run_directory(first: tuple[Path, Ended]) -> None:
    folder, _ = first
    names = ("grpo-seed0", "no-KL-seed0")
    for name in names:
        run = folder / name
        assert len(metrics(run)) == 3
        assert json.loads((run / "summary.json").read_text())["after"]["problems"] == 3
        assert "Report: " in (run / "console.txt").read_text()
        assert (run / "report.html").is_file()
    # The same problems in the same order, with the same first step: nothing is learned yet.
    for query in (
        "SELECT step, problem_id FROM completions ORDER BY 1, 2",
        "SELECT text FROM completions WHERE step = 1",
    ):
        one, other = (rollouts(folder / name, query) for name in names)
        assert one == other


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_stops_no_other(first: tuple[Path, Ended]) -> None:
    folder, ended = first
    assert ended.code == 1, ended.text
    assert "wild-seed0: failed with code 2" in ended.text  # its weights exploded twice
    assert "3 runs, 0 of them finished" in ended.text
    summary = json.loads((folder / "summary.json").read_text())
    runs = {name: list(found["runs"]) for name, found in summary["variants"].items()}
    assert runs == {"grpo": ["0"], "no KL": ["0"], "wild": []}
    assert "wild" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_finished_runs_are_kept_and_the_report_is_written_anew(first: tuple[Path, Ended], tmp_path: Path) -> None:
    shutil.copytree(first[0], tmp_path / "both")
    (tmp_path / "both" / "report.html").unlink()
    kept = [tree(tmp_path / "both" / name) for name in ("grpo-seed0", "no-KL-seed0")]
    ended = compared(tmp_path)
    assert ended.code == 0
    assert "2 runs, 2 of them finished" in ended.text
    assert [tree(tmp_path / "both" / name) for name in ("grpo-seed0", "no-KL-seed0")] == kept
    assert (tmp_path / "both" / "report.html").is_file()


@pytest.mark.slow
def test_what_was_interrupted_goes_on(first: tuple[Path, Ended], tmp_path: Path) -> None:
    shutil.copytree(first[0], tmp_path / "both")
    stopped, killed = tmp_path / "both" / "grpo-seed0", tmp_path / "both" / "no-KL-seed0"
    shutil.rmtree(stopped / "checkpoints" / "step-000003")
    shutil.rmtree(killed / "checkpoints")  # it ended before its first one
    first_line = (killed / "metrics.jsonl").read_text().splitlines()[0]
    (killed / "metrics.jsonl").write_text(first_line + "\n")
    for run in (stopped, killed):
        (run / "summary.json").unlink()
    ended = compared(tmp_path)
    assert ended.code == 0, ended.text
    assert (stopped / "console.txt").read_text().count("Report: ") == 2
    assert "starts again from step 0" in (killed / "console.txt").read_text()
    assert (stopped / "held_out.jsonl").read_text() == (first[0] / "grpo-seed0" / "held_out.jsonl").read_text()
    assert_same_run(stopped, first[0] / "grpo-seed0", step=3)
    assert_same_run(killed, first[0] / "no-KL-seed0", step=3)


@pytest.mark.slow
def test_stages_that_were_killed_go_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learns = ["pairs.count=16", "model.threads=1"]
    stages = [
        {"sft": ["model=abacus", *learns]},
        {"train": ["model=stage:1"]},
        {"sft": ["model=stage:1", "pairs.run=stage:2", "model.threads=1"]},
        {"train": ["model=stage:3"]},
    ]
    file, (whole, killed) = tmp_path / "given.yaml", (tmp_path / "whole", tmp_path / "killed")
    variants = {"all": stages, "one": stages[:2]}
    file.write_text(json.dumps({"name": "both", "base": ["demo"], "seeds": [0], "stages": variants}))

    def staged(*more: str) -> Ended:
        return grouprl("compare", file, *TINY, *more)

    whole.mkdir()
    monkeypatch.chdir(whole)
    ended = staged()
    assert ended.code == 0, ended.text
    shutil.copytree(whole, killed)
    monkeypatch.chdir(killed)  # the runs name earlier stages by their path from here
    runs = Path("runs", "both")
    shutil.rmtree(runs / "all-seed0-2-train" / "checkpoints" / "step-000003")  # killed in its last step
    (runs / "all-seed0-2-train" / "summary.json").unlink()
    shutil.rmtree(runs / "one-seed0-1-sft" / "model")  # and this one before its end
    for later in ("all-seed0-3-sft", "all-seed0-4-train", "one-seed0-2-train"):
        shutil.rmtree(runs / later)
    ended = staged()
    assert ended.code == 0, ended.text
    assert "6 runs, 1 of them finished" in ended.text
    for run in map(runs.joinpath, ("all-seed0-2-train", "all-seed0-4-train", "one-seed0-2-train")):
        assert_same_run(run, whole / run, step=3)
    for weights in runs.glob("*-sft/model/model.safetensors"):
        assert weights.read_bytes() == (whole / weights).read_bytes()
    ended = staged(f"stages.all.0.sft={json.dumps([*learns, 'epochs=2'])}")
    assert "all-seed0-1-sft: epochs: 1 then, 2 now" in ended.text


@pytest.mark.slow
def test_other_settings_are_refused_and_nothing_is_touched(first: tuple[Path, Ended]) -> None:
    before = tree(first[0])
    ended = compared(first[0].parent, "learner.learning_rate=0.5")
    assert ended.code == 2
    assert "grpo-seed0: learner.learning_rate: 0.0002 then, 0.5 now" in ended.text
    assert "choose another name, or remove these folders" in ended.text
    assert tree(first[0]) == before


@pytest.mark.slow
def test_what_a_run_says_that_the_user_can_mend_ends_the_comparison(tmp_path: Path) -> None:
    ended = compared(tmp_path, "rollout.max_tokens=5000", "jobs=1")
    assert ended.code == 2
    assert re.search(r"grpo-seed0: rollout.max_tokens: expected less than the model's context", ended.text)
    assert not (tmp_path / "both" / "no-KL-seed0").exists()


@pytest.mark.slow
def test_a_request_to_stop_saves_the_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    config = CompareConfig(
        name="long", runs_dir=str(tmp_path), base=("demo",), seeds=(0,),
        settings=("steps=3000", *TINY[1:-1]), variants={"a": ("algorithm=grpo",), "b": ("algorithm=rloo",)},
    )  # fmt: skip
    watched = tmp_path / "long" / "a-seed0" / "metrics.jsonl"

    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while not watched.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    found = compare(config, resolve)
    thread.join()
    assert (found.finished, found.failed) == (False, ())
    assert list((tmp_path / "long" / "a-seed0" / "checkpoints").glob("step-*"))
    assert "Continue with --resume" in (tmp_path / "long" / "a-seed0" / "console.txt").read_text()
    assert not (tmp_path / "long" / "b-seed0").exists()
