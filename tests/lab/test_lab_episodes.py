"""Episodes on the page: a conversation turn by turn, whatever was said in it, and runs that have none."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grouprl.lab.report.groups import one_group
from grouprl.lab.report.tokens import one_completion
from grouprl.lab.report.write import group_answers, write_report
from grouprl.record.queries import copy_steps
from grouprl.record.read import read_rollouts
from grouprl.record.rollouts import open_rollouts
from grouprl.types import UserError
from lab_runs import Made, make_run
from recorded_episodes import CALL, EPISODES, LONG, record_episodes


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record_episodes(tmp_path / "run")


def change(run: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database, database:
        for statement in statements:
            database.execute(statement)


def episodes(run: Path) -> list[Any]:
    return [completion["episode"] for completion in one_group(run, 1, 0)["completions"]]


def test_an_episode_is_its_turns_with_what_was_shown_after_each(run: Path) -> None:
    solved, two_calls, timed_out, unreadable = episodes(run)
    assert (solved["ended"], solved["invalid"], solved["reward"]) == ("finished", False, 1.0)
    call = {
        "tool": "calculate",
        "arguments": '{"expression": "17 * 3"}',
        "result": "51",
        "seconds": 0.0123,
        "fault": "",
    }
    # Tokens 0 to 2 have an advantage of 1, 3 and 4 of 0.5, 5 and 6 of 2.
    nothing: dict[str, Any] = {"calls": [], "replies": [], "shown": 0, "forked": False}
    assert solved["turns"] == [
        {"text": CALL, "end": 2, "advantages": [1, 1], "reward": None, **nothing, "calls": [call], "shown": 8},
        {"text": "Is it 51?", "end": 4, "advantages": [0.5, 0.5], "reward": 0.25, **nothing, "shown": 4}
        | {"replies": [{"role": "user", "content": "Yes."}]},
        {"text": "51", "end": 6, "advantages": [2, 2], "reward": 1.0, **nothing},
    ]
    assert [[call["fault"] for turn in one["turns"] for call in turn["calls"]] for one in (two_calls, timed_out)] == [
        ["", ""],
        ["timeout"],
    ]
    assert [[turn["forked"] for turn in one["turns"]] for one in (solved, unreadable)] == [[False] * 3, [True, False]]
    assert (timed_out["invalid"], timed_out["reward"]) == (True, None)
    assert [turn["advantages"] for turn in unreadable["turns"]] == [
        pytest.approx([-0.5, -0.1]),
        pytest.approx([-0.7, -0.6]),
    ]


def test_a_long_result_is_cut_in_a_group_and_whole_beside_its_tokens(run: Path) -> None:
    cut = episodes(run)[1]["turns"][0]["calls"][1]["result"]
    assert cut.endswith(f"… ({len(LONG):,} characters in all)")
    assert LONG.startswith(cut[:1000])
    assert len(cut) < 10_000
    whole = one_completion(run, 1, 0, 1, root=run.parent)["episode"]["turns"][0]["calls"][1]["result"]
    assert whole == LONG


def test_a_completion_of_one_turn_has_no_episode(tmp_path: Path) -> None:
    assert episodes(make_run(tmp_path / "run", [Made((1.0, 0.0))])) == [None, None]


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("$.ends", "[2, 4]"), ("$.ends", "[4, 2, 6]"), ("$.ends", '"all"'), ("$.ends", "[]"), ("$.reward", '"much"'),
        ("$.turn_rewards", '[null, "x", 1]'), ("$.calls[0].turn", "3"), ("$.calls[0].seconds", '"long"'),
        ("$.messages", "[7]"), ("$.messages[0]", '{"role": "assistant"}'), ("$.other", "1"),
    ],
)  # fmt: skip
def test_a_damaged_episode_is_refused(run: Path, where: str, value: str) -> None:
    change(run, f"UPDATE episodes SET episode = json_set(episode, '{where}', json('{value}'))")
    with pytest.raises(UserError, match=r"expected the episode of a completion, got .*: restore the file"):
        episodes(run)


def test_what_is_no_text_in_a_call_is_shown_as_json(run: Path) -> None:
    change(run, "UPDATE episodes SET episode = json_set(episode, '$.calls[0].result', json('[1]'))")
    assert [episode["turns"][0]["calls"][0]["result"] for episode in episodes(run)] == ["[1]"] * 4


def test_the_report_has_an_episode_and_stays_small(run: Path) -> None:
    answers = group_answers(run, "run")
    assert len(answers["runs/run/groups/1/0"]["completions"][0]["episode"]["turns"]) == 3
    assert [f"runs/run/completions/1/0/{index}" in answers for index in range(4)] == [True] * 4
    assert len(json.dumps(answers)) < 100_000


# In a browser


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    browser = pytest.importorskip("lab_browser")
    if not browser.CHROMIUM:
        pytest.skip("no Chromium here: apt install chromium")
    report = write_report(record_episodes(tmp_path_factory.mktemp("runs") / "run", steps=2))
    with browser.opened(report) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_tokens_stand_in_their_turns_and_arrow_keys_lead_through_all(shown: Any) -> None:
    page = shown.page
    shown.go("/runs/run/groups/2/0")
    page.get_by_role("button", name="Tokens").first.click()
    boxes = page.get_by_role("listbox")
    boxes.nth(2).wait_for()
    assert [box.get_by_role("option").count() for box in boxes.all()] == [3, 2, 2]
    assert boxes.nth(1).get_attribute("aria-label") == "Tokens of turn 2 of completion 0"
    page.locator(".token").first.focus()
    for place in range(1, 7):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.place") == str(place)
        assert f"Token {place + 1} of 7" in page.locator(".tokenpanel").inner_text()
    shown.watched.assert_quiet()


def test_the_copy_for_a_fork_has_the_episodes(tmp_path: Path) -> None:
    run, fork = record_episodes(tmp_path / "run", steps=2), tmp_path / "fork"
    fork.mkdir()
    with closing(open_rollouts(f"file:{fork}/rollouts.sqlite")) as copy:
        copy_steps(copy, run, [1])
    assert [completion.episode for completion in read_rollouts(fork, 1)[0].group.completions] == list(EPISODES)
    assert read_rollouts(fork, 1) == read_rollouts(run, 1)
    assert read_rollouts(fork, 2) == ()
