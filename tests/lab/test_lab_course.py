"""What a reader of a run sees first: completions through training, and what the prompts have in common."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.lab.report.groups import groups_of_step, history, one_group
from grouprl.lab.report.prompts import SharedBeginning
from grouprl.lab.report.run_data import read_files, run_answer
from grouprl.lab.report.write import write_report
from grouprl.lab.rollout_routes import SearchTerms, search
from grouprl.record.read import Example
from grouprl.record.write import RunRecord
from grouprl.types import Completion, Group, Message, Problem, RewardOutcome, StepRecord, StopReason
from lab_browser import Opened, needs_chromium, opened
from lab_runs import CONFIG, Made, make_run
from small_runs import grouprl

SYSTEM: Message = {"role": "system", "content": "Think step by step, and write the last number in a box."}
SHOWN: tuple[Message, ...] = (
    {"role": "user", "content": "What is 2 + 3 apples? An apple is a fruit."},
    {"role": "assistant", "content": "2 + 3 = 5"},
    {"role": "user", "content": "What is 7 + 1 plums?"},
    {"role": "assistant", "content": "7 + 1 = 8"},
)


def asked(question: str) -> Message:
    return {"role": "user", "content": question}


def chat(question: str) -> tuple[Message, ...]:
    return SYSTEM, *SHOWN, asked(question)


TEXT = "Question: 2 + 3?\nAnswer: 5\n\nQuestion: 7 + 1?\nAnswer: 8\n\n" + "Write a number and nothing else. " * 3 + "\n"


@pytest.mark.parametrize(
    ("chats", "folded"),
    [
        ([chat("What is 1 + 1?"), chat("What is 1 + 2?")], [1, 2, 3, 4]),
        ([(*SHOWN[:2], asked("a")), (*SHOWN[:2], asked("b"))], [0, 1]),
        ([(SYSTEM, asked("a")), (SYSTEM, asked("b"))], []),  # a system message alone stays
        ([chat("a"), chat("a")], []),  # one prompt shares nothing
        ([chat("a"), (SYSTEM, *SHOWN[:2], asked("b"))], [1, 2]),
        ([(SYSTEM, *SHOWN), chat("a")], [1, 2]),  # the last turn of the first is its own
        ([(asked("same"), asked("a")), (asked("same"), asked("b"))], []),  # no worked example
    ],
)
def test_the_worked_examples_of_a_chat(chats: list[tuple[Message, ...]], folded: list[int]) -> None:
    shared = SharedBeginning.of(["\n".join(one["content"] for one in messages) for messages in chats], chats)
    marked = shared.marked("", chats[0])
    assert marked is not None
    assert [{name: turn[name] for name in ("role", "content")} for turn in marked] == [dict(one) for one in chats[0]]
    assert [place for place, turn in enumerate(marked) if turn.get("shared")] == folded


@pytest.mark.parametrize(
    ("texts", "own"),
    [
        ([f"{TEXT}4 + 4?", f"{TEXT}4 + 5?"], "… 4 + 4?"),  # whole lines are cut
        (["What is 4 + 4?", "What is 4 + 5?"], "What is 4 + 4?"),
        ([TEXT, TEXT], TEXT),
        (["", TEXT], ""),
        ([f"{TEXT}4?", TEXT], "… 4?"),
        ([f"{TEXT}4?", f"{TEXT}5?", "another"], f"{TEXT}4?"),
    ],
)
def test_the_own_part_of_a_text(texts: list[str], own: str) -> None:
    shared = SharedBeginning.of(texts)
    assert shared.own(texts[0]) == own
    parts = shared.marked(texts[0], None)
    assert (parts is None) == (own == texts[0])
    assert parts is None or "".join(part["content"] for part in parts) == texts[0]
    assert shared.own("a text of another run") == "a text of another run"


def run_of(folder: Path, prompts: list[Any]) -> Path:
    """One step, a group of two completions for each prompt."""
    with RunRecord.create(folder, CONFIG) as record:
        members = [Completion(at, (7, 8), (-0.5,) * 2, (-0.5,) * 2, f"text {at}", StopReason.END, 0) for at in (0, 1)]
        groups = [Group(Problem(f"p{at}", prompt), (1,), tuple(members)) for at, prompt in enumerate(prompts)]
        scored = [RewardOutcome(1.0, {"exact": 1.0}, correct=True), RewardOutcome(0.0, {"exact": 0.0})]
        advantages = [[[1.0] * 2, [-1.0] * 2]] * len(groups)
        record.step(StepRecord(1, {"reward": 0.5}, groups, [scored] * len(groups), advantages))
        examples = [Example(one.problem.id, one.problem.prompt_text, "", "text", True) for one in groups]
        record.examples("before", examples)
    return folder


def test_pages_show_the_question_and_fold_the_examples(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [chat("How many pears?"), chat("How many plums?")])
    listed = groups_of_step(run, 1, offset=0, limit=9)["groups"]
    assert [one["prompt"] for one in listed] == ["… How many pears?", "… How many plums?"]
    for messages in (one_group(run, 1, 1)["messages"], history(run, "p1", before=None, limit=9)["messages"]):
        assert [one["role"] for one in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
        assert [bool(one.get("shared")) for one in messages] == [False, True, True, True, True, False]
    shown = run_answer("run", run, read_files(run))["examples"]["before"]
    assert [one["prompt"] for one in shown] == ["… How many pears?", "… How many plums?"]
    # Every prompt has apples in its examples: only what it asks itself is searched.
    for text, hits in {"pears": 2, "apples": 0, "many": 4}.items():
        assert len(search(run, SearchTerms(prompt=text), before=None, limit=9)["rows"]) == hits
    beside_a_text = run_of(tmp_path / "mixed", [chat("a"), chat("b"), "a text"])
    assert not any(one.get("shared") for one in one_group(beside_a_text, 1, 0)["messages"])


def test_a_sampled_group_shows_its_turns() -> None:
    ended = grouprl("sample", "abacus", "task.examples=2", "rollout.group_size=2", "rollout.max_tokens=4")
    assert ended.code == 0, ended.err
    before = ended.out.partition("\n0  ")[0]
    assert "(4 turns, the same in every prompt)\nuser: " in before
    assert before.count("user: ") == 1


SENTENCE, SETTING = "Step 3: the KL to the reference is 5.46 nats per token.", "lower learner.learning_rate"
# Pixels of the color of marks, in the columns of a chart's canvas.
MARKED = """(title) => {
  const chart = document.querySelector(`section.chart-card[aria-label="${title}"]`);
  chart.scrollIntoView();
  return new Promise((done) => setTimeout(() => {
    const canvas = chart.querySelector("canvas"), { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const down = (x) => Array.from({ length: height }, (_, y) => 4 * (y * width + x));
    const columns = Array.from({ length: width }, (_, x) => down(x)
      .filter((at) => data[at] === 166 && data[at + 1] === 60 && data[at + 2] === 0 && data[at + 3] === 255).length);
    done(columns.map((count, x) => [x / width, count]).filter(([, count]) => count > height / 3).map(([x]) => x));
  }, 600));
}"""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Five steps, with a loss that is none but for rounding and a warning about the third."""
    made = [[Made([0.0, 3.0, 1.0], f"train-{step}")] for step in range(5)]
    run = make_run(tmp_path_factory.mktemp("runs") / "warned", *made)
    with RunRecord.reopen(run, 5) as record:
        for when, answers in {"before": "33", "step 1": "74", "step 5": "77"}.items():  # easy is right from step 1 on
            pairs = [("easy", answers[0]), ("hard", answers[1])]
            record.examples(
                when, [Example(name, f"How {name}?", "7", f"I say {one}", one == "7") for name, one in pairs]
            )
    metrics: list[dict[str, Any]] = [
        {"step": step, "reward": 0.5, "kl": 0.01 * step, "loss": 0.01 if step == 1 else -3e-8} for step in range(1, 6)
    ]
    warning = {"step": 3, "kind": "explosion", "metric": "kl", "sentence": SENTENCE, "setting": SETTING}
    for name, lines in (("metrics.jsonl", metrics), ("warnings.jsonl", [warning])):
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with opened(write_report(run)) as shown:
        yield shown
        shown.watched.assert_quiet()


@needs_chromium
@pytest.mark.slow
def test_the_first_screen_shows_the_course_and_a_loss_of_0(short: Opened) -> None:
    page = short.page
    assert page.locator(".course li").first.bounding_box()["y"] < 600
    assert page.locator(".course .said").all_inner_texts() == ["I say 4", "I say 7"]
    assert page.locator(".asked").inner_text() == "How hard? Correct answer: 7"
    loss = page.get_by_role("region", name="Loss")
    loss.scroll_into_view_if_needed()
    loss.get_by_text("0 up to rounding").first.wait_for()
    loss.get_by_role("slider").press("Home")
    assert "loss 0.01" in loss.get_by_role("slider").get_attribute("aria-valuetext")


@needs_chromium
@pytest.mark.slow
def test_a_warning_says_what_to_change_and_marks_the_chart_of_its_metric(short: Opened) -> None:
    (row,) = short.page.get_by_role("region", name="Warnings").locator("tbody tr").all_inner_texts()
    assert row.split("\t") == ["3", SENTENCE, SETTING]
    marks = short.page.evaluate(MARKED, "KL to the reference")
    assert marks
    assert 0.45 < sum(marks) / len(marks) < 0.62  # step 3 of 1 to 5, beside the axis
    assert short.page.evaluate(MARKED, "Reward") == []
