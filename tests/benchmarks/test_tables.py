"""What scripts of the benchmarks make of their results, which the docs show; benchmarks run with `--smoke`."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest
import torch
import yaml

from small_runs import grouprl

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module(request.param)


def tables(page: Path) -> list[list[str]]:
    text = page.read_text(encoding="utf-8")
    return [found.splitlines() for found in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)]


@pytest.mark.parametrize("script", ["speed_tables"], indirect=True)
def test_pages_show_what_was_measured(script: ModuleType) -> None:
    for page in script.PAGES:
        assert tables(page) == list(script.tables(page)), "run python benchmarks/speed_tables.py --write"


@pytest.mark.parametrize("script", ["demo_figures"], indirect=True)
@pytest.mark.parametrize("place", ["README.md", "docs/start.md", "src/grouprl/recipes/demo.yaml", "docs/models.md"])
def test_the_demo_has_the_same_figures_everywhere(script: ModuleType, place: str) -> None:
    assert list(script.PLACES) == ["README.md", "docs/start.md", "src/grouprl/recipes/demo.yaml", "docs/models.md"]
    written = script.written(place, json.loads(script.RESULTS.read_text(encoding="utf-8")))
    shown = (ROOT / place).read_text(encoding="utf-8")
    assert shown == written, "run python benchmarks/demo_figures.py --write"


@pytest.mark.parametrize("script", ["comparison_tables"], indirect=True)
def test_comparison_shows_what_was_compared(script: ModuleType) -> None:
    shown, kept = tables(ROOT / "docs/evidence.md"), script.kept()
    for name, summary in kept.items():
        assert list(script.table(summary, costs=summary["costs"])) in shown, name
    assert script.claims() in shown, "run python benchmarks/comparison_tables.py and paste the table of claims"


@pytest.mark.parametrize("script", ["comparison_tables"], indirect=True)
def test_p_values_of_the_claims_are_corrected_over_the_whole_table(script: ModuleType) -> None:
    kept = script.kept_claims()
    rows = [row for claim in kept.values() for row in claim["measured"]]
    # Student's t with four degrees of freedom, in closed form; Holm's method by its definition.
    angles = [math.atan(abs(row["difference"]["mean"]) / row["difference"]["error"] / 2) for row in rows]
    p_values = [1 - math.sin(angle) * (1 + math.cos(angle) ** 2 / 2) for angle in angles]
    for row, own in zip(rows, p_values, strict=True):
        steps = [p * sum(other >= p for other in p_values) for p in p_values if p <= own]
        assert (row["p_value"], row["p_in_table"]) == pytest.approx((own, min(1.0, max(steps))), abs=1e-9)
        assert row["difference"]["seeds"] == 5
        assert not row["by_seed"] or fmean(row["by_seed"]) == pytest.approx(row["difference"]["mean"])
    for claim in kept.values():
        is_significant = all(row["p_in_table"] < 0.05 for row in claim["measured"])
        assert claim["holds_in_table"] == (claim["verdict"] == "holds" and is_significant)
    assert [row["p_in_table"] for row in kept["four_stages"]["measured"]] == pytest.approx([0.808], abs=1e-3)


@pytest.mark.parametrize("script", ["shapes"], indirect=True)
@pytest.mark.parametrize(("vocabulary", "layers"), [(512, 2), (20_000, 2), (512, 30)])
@torch.no_grad()
def test_completions_end_as_often_with_every_vocabulary(script: ModuleType, vocabulary: int, layers: int) -> None:
    shape = replace(script.TINY, vocabulary=vocabulary, layers=layers, hidden=64, prompt_tokens=40, problems=4)
    logits = script.build(shape)(torch.tensor(script.prompts(shape))).logits
    ends = logits.softmax(-1)[..., script.END].mean()
    assert float(ends) == pytest.approx(3 / 512, rel=0.25)


@pytest.mark.parametrize("script", ["shapes"], indirect=True)
@pytest.mark.parametrize(
    ("name", "millions"), [("smollm2-135m", 134.5), ("smollm2-360m", 361.8), ("qwen2.5-0.5b", 494.0)]
)
def test_the_shapes_are_as_large_as_the_models(
    monkeypatch: pytest.MonkeyPatch, script: ModuleType, name: str, millions: float
) -> None:
    with torch.device("meta"):
        monkeypatch.setattr(script, "_end_often", lambda model: None)
        model = script.build(script.REAL[name])
    assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("script", ["floor"], indirect=True)
def test_a_floor_counts_shared_tokens_once(monkeypatch: pytest.MonkeyPatch, script: ModuleType) -> None:
    monkeypatch.setattr(script, "matmul_rate", lambda *_: 1.0)
    monkeypatch.setattr(script, "bandwidth", lambda _: 1e30)
    shape = script.Shape(4, 2, 2, 1, 8, 3, 2, prompt_tokens=10, max_tokens=5, shared_tokens=6, vocabulary=50)
    # A layer: queries and output 4 x 4, keys and values 4 x 2, three of 4 x 8. Prompts: 6 + 3 x 4 tokens.
    layers, head, prompts = 2 * (2 * 16 + 2 * 8 + 3 * 32), 4 * 50, 18
    floors = script.step_floors(shape, [3] * 6, "float32", reference=True)
    learning = 6 * (layers * (prompts + 6 * 2) + head * 6 * 3)
    assert floors == {
        "generation": 2 * layers * prompts + 2 * (layers + head) * 6 * 2,
        "reference": learning / 3,
        "learn": learning,
    }


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "course_posts.py"


@pytest.fixture(scope="module")
def posts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("course") / "posts"
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True)
    return folder


def prompts(file: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in file.read_text(encoding="utf-8").splitlines()]


def test_no_post_is_there_twice_and_all_end_where_the_policy_begins(posts: Path) -> None:
    train, test = prompts(posts / "train.jsonl"), prompts(posts / "test.jsonl")
    assert (len(train), len(test), len({*train, *test})) == (256, 64, 320)
    for prompt in (*train, *test):
        assert prompt.startswith("SUBREDDIT: r/")
        assert prompt.endswith("\n\nTL;DR:")
        assert 70 <= len(prompt.split()) <= 110  # 100 to 140 tokens
        assert "{" not in prompt
    assert runpy.run_path(str(SCRIPT))["posts"]()["test"] == test  # the same in every process


def test_the_recipe_trains_on_them(posts: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    ended = grouprl(
        "train", "smollm2_course", "--model", "abacus", f"task.path={posts}", f"runs_dir={tmp_path}", "steps=1",
        "rollout.problems_per_step=2", "rollout.group_size=2", "rollout.max_tokens=4", "evaluation.problems=1",
        "evaluation.samples=0",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    (row,) = (tmp_path / "smollm2_course" / "metrics.jsonl").read_text().splitlines()
    assert -50.0 <= json.loads(row)["reward"] < 0.0


def test_the_page_shows_the_recipe_and_the_script_has_its_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    root = SCRIPT.parents[1]
    page = (root / "docs" / "start.md").read_text(encoding="utf-8")
    recipe = (root / "src/grouprl/recipes/smollm2_course.yaml").read_text(encoding="utf-8").partition("name: ")[2]
    shown = page.partition("```yaml\n")[2].partition("```")[0]
    assert shown == recipe.partition("\n")[2]
    rollout = yaml.safe_load(shown)["rollout"]
    monkeypatch.syspath_prepend(SCRIPT.parent)
    sizes = runpy.run_path(str(SCRIPT.with_name("course_trl.py")))
    assert [sizes[name] for name in ("PROBLEMS", "COMPLETIONS", "TOKENS")] == list(rollout.values())


HERE = Path(__file__).parents[2] / "benchmarks"
FILES = {path.stem: path for path in sorted(HERE.glob("*.py"))}
SCRIPTS = [name for name, path in FILES.items() if "__main__" in path.read_text(encoding="utf-8")]


def imported(name: str) -> set[str]:
    """The benchmark files that one imports, in functions and for types only as well."""
    nodes = list(ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in FILES if name in names}


def test_no_circle_of_imports() -> None:
    left = {name: imported(name) for name in FILES}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"expected benchmarks that import one way, got a circle among {sorted(left)}"


def test_a_file_is_a_benchmark_or_is_imported_by_one() -> None:
    assert [name for name in FILES if name not in SCRIPTS and not any(name in imported(one) for one in FILES)] == []


def kept() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (HERE / "results").rglob("*.json")}


@pytest.mark.slow
@pytest.mark.timeout(700)  # Ray's actors take minutes to start beside other work
@pytest.mark.parametrize("name", [name for name in SCRIPTS if not name.startswith("gpu")])  # see test_gpu_course.py
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    results = kept()
    # A process of its own: threads of torch do not survive a fork.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(HERE / f"{name}.py"), "--smoke"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600.0)
    assert ended.returncode == 0, f"{name} --smoke: {ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    assert ended.stdout.strip(), f"{name} --smoke printed nothing"
    # What it measured of tiny sizes is kept nowhere.
    assert list(tmp_path.iterdir()) == []
    assert kept() == results
