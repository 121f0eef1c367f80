"""The posts of the course's exercise: all different, of the lengths that the page names; the recipe trains on them."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from small_runs import grouprl

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


@pytest.mark.usefixtures("no_page")
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
