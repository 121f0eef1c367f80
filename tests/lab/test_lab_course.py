"""The first screen of a run: completions through training, and a loss that is 0 but for rounding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.lab.report.course import course_answer
from grouprl.lab.report.write import write_report
from lab_browser import needs_chromium, opened
from lab_runs import Made, make_run


def step(number: int, problem: str) -> list[Made]:
    """Rewards 0, 3, 1 and an invalid one: of the three valid the median is 1, the third completion's."""
    texts = [f"{word} of step {number}" for word in ("low", "high", "middle", "invalid")]
    return [Made([0.0, 3.0, 1.0, None], problem, texts=texts, correct=[False, True, True, None])]


def texts(folder: Path) -> list[str]:
    return [one["text"] for one in course_answer(folder)["steps"]]


def test_the_median_completion_of_steps_1_5_10_and_the_last(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", *(step(number, f"train-{number}") for number in range(1, 13)))
    found = course_answer(run)
    assert texts(run) == [f"middle of step {number}" for number in (1, 5, 10, 12)]
    assert not found["same"]
    assert found["steps"][0] == {
        "step": 1, "group_index": 0, "index": 2, "prompt": "prompt of train-1", "text": "middle of step 1",
        "reward": 1.0, "correct": True, "completions": 3,
    }  # fmt: skip


def test_a_problem_that_comes_again_is_shown_alone(tmp_path: Path) -> None:
    """It came in steps 1, 4, 9 and 12: these are nearest to 1, 5, 10 and the last, 12."""
    steps = [step(number, "again" if number in (1, 4, 9, 12) else f"train-{number}") for number in range(1, 13)]
    run = make_run(tmp_path / "run", *steps)
    assert course_answer(run)["same"]
    assert texts(run) == [f"middle of step {number}" for number in (1, 4, 9, 12)]


def test_nothing_is_shown_of_what_is_not_there(tmp_path: Path) -> None:
    invalid = [Made([None, None])]
    assert course_answer(make_run(tmp_path / "none")) == {"same": False, "steps": []}
    assert course_answer(make_run(tmp_path / "invalid", invalid)) == {"same": False, "steps": []}
    assert texts(make_run(tmp_path / "one", step(1, "a"), invalid)) == ["middle of step 1"]


def test_a_held_out_problem_is_shown_instead_once_the_run_has_learned_it(tmp_path: Path) -> None:
    """Of two problems one is solved from the start; of the other the course says when the policy learned it."""
    run = make_run(tmp_path / "run", step(1, "a"), step(2, "b"))

    def example(name: str, text: str, correct: bool) -> dict[str, Any]:
        return {"problem_id": name, "prompt": f"How {name}?", "answer": "7", "completion": text, "correct": correct}

    solved = example("easy", "7", True)
    rows = {
        "before": [solved, example("hard", "I guess 3", False)],
        "step 1": [solved, example("hard", "I guess 4", False)],
        "after": [solved, example("hard", "3 + 4 = 7", True)],
    }
    (run / "examples.json").write_text(json.dumps(rows))
    assert texts(run) == ["middle of step 1", "middle of step 2"]  # not finished: one held-out completion is no course
    (run / "summary.json").write_text('{"steps": 2}')
    found = course_answer(run)
    assert found["same"]
    assert [(one["step"], one["text"], one["correct"]) for one in found["steps"]] == [
        (1, "I guess 4", False), (2, "3 + 4 = 7", True),
    ]  # fmt: skip
    assert {(one["prompt"], one["answer"], one["reward"], one["group_index"]) for one in found["steps"]} == {
        ("How hard?", "7", None, None)
    }


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """The report of a run with one loss of rounding and one that is none."""
    run = make_run(tmp_path / "run", *(step(number, f"train-{number}") for number in (1, 2)))
    rows = [{"step": 1, "reward": 0.5, "loss": 0.01}, {"step": 2, "reward": 0.5, "loss": -3e-8}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with opened(write_report(run)) as browser:
        yield browser.page
        browser.watched.assert_quiet()


@needs_chromium
def test_the_first_screen_shows_the_course_and_a_loss_of_0(page: Any) -> None:
    first = page.locator(".course li").first
    assert first.bounding_box()["y"] < 600
    assert page.locator(".course .said").all_inner_texts() == ["middle of step 1", "middle of step 2"]
    loss = page.get_by_role("region", name="Loss")
    loss.scroll_into_view_if_needed()
    loss.get_by_text("0 up to rounding").first.wait_for()
    loss.get_by_role("slider").press("Home")
    assert "loss 0.01" in loss.get_by_role("slider").get_attribute("aria-valuetext")
