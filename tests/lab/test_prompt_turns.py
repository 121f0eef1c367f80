"""What prompts have in common, by hand; and how pages, search and terminal show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.lab.report.course import course_answer
from grouprl.lab.report.groups import groups_of_step, history, one_group
from grouprl.lab.report.prompts import SharedBeginning
from grouprl.lab.report.run_data import read_files, run_answer
from grouprl.lab.search import SearchTerms, search
from grouprl.record.read import Example
from grouprl.record.write import RunRecord
from grouprl.types import Completion, Group, Message, Problem, RewardOutcome, StepRecord, StopReason
from lab_runs import CONFIG
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
        ([chat("a"), (SYSTEM, asked("a"))], []),  # another without examples
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
        (["short\n4?", "short\n5?"], "short\n4?"),
        ([TEXT, TEXT], TEXT),
        ([TEXT], TEXT),
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
        outcomes = [[RewardOutcome(1.0, {"exact": 1.0}, correct=True), RewardOutcome(0.0, {"exact": 0.0})]] * len(
            groups
        )
        record.step(StepRecord(1, {"reward": 0.5}, groups, outcomes, [[[1.0] * 2, [-1.0] * 2]] * len(groups)))
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
    assert course_answer(run)["steps"][0]["prompt"].startswith("… How many")
    shown = run_answer("run", run, read_files(run))["examples"]["before"]
    assert [one["prompt"] for one in shown] == ["… How many pears?", "… How many plums?"]
    # Every prompt has apples in its examples: only what it asks itself is searched.
    hits = {
        text: len(search(run, SearchTerms(prompt=text), before=None, limit=9)["rows"])
        for text in ("pears", "apples", "many")
    }
    assert hits == {"pears": 2, "apples": 0, "many": 4}


def test_chats_beside_texts_are_not_folded(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [chat("a"), chat("b"), "a text"])
    assert not any(one.get("shared") for one in one_group(run, 1, 0)["messages"])
    assert (one_group(run, 1, 2)["prompt"], one_group(run, 1, 2)["messages"]) == ("a text", None)


def test_a_sampled_group_shows_its_turns() -> None:
    ended = grouprl("sample", "abacus", "task.examples=2", "rollout.group_size=2", "rollout.max_tokens=4")
    assert ended.code == 0, ended.err
    before = ended.out.partition("\n0  ")[0]
    assert "(4 turns, the same in every prompt)\nuser: " in before
    assert before.count("user: ") == 1
