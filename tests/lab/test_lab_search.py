"""The lab's search, whose pieces and pages lose nothing, and what the prompts of a run have in common."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from grouprl.lab import rollout_routes as search_module
from grouprl.lab.report.groups import groups_of_step, history, one_group
from grouprl.lab.report.prompts import SharedBeginning
from grouprl.lab.report.run_data import read_files, run_answer
from grouprl.lab.rollout_routes import SearchTerms, search
from grouprl.record.read import Example
from grouprl.record.write import RunRecord
from grouprl.types import Completion, Group, Message, Problem, RewardOutcome, StepRecord, StopReason
from lab_runs import CONFIG, Made, add_step, make_run
from small_runs import grouprl

TEXTS = Made(
    (1.5, 0.0, None, -1.0),
    texts=("Äpfel: 50% off", "a_b 50 pounds", "\0 \\boxed{7}", "Straße"),
    correct=(True, False, None, False),
    stops=(StopReason.END, StopReason.STOP_STRING, StopReason.LENGTH, StopReason.LENGTH),
    advantages=(1.0, 0.0, 0.0, -1.0),
)
PLAIN = Made((0.5, 0.5), problem="train-2", texts=("axb", "yes"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("search") / "run", [TEXTS], [PLAIN, PLAIN], [PLAIN])


@pytest.fixture
def run(recorded: Path, root: Path) -> Path:
    return Path(shutil.copytree(recorded, root / "run"))


def places(found: dict[str, Any]) -> list[str]:
    names = ("step", "group_index", "completion_index")
    return ["-".join(str(row[name]) for name in names) for row in found["rows"]]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (SearchTerms(text="äPFEL"), ["1-0-0"]),
        (SearchTerms(text="STRASSE"), ["1-0-3"]),
        (SearchTerms(text="50%"), ["1-0-0"]),
        (SearchTerms(text="A_B"), ["1-0-1"]),
        (SearchTerms(text="50% pounds"), []),
        (SearchTerms(min_reward=0.5), ["3-0-1", "3-0-0", "2-1-1", "2-1-0", "2-0-1", "2-0-0", "1-0-0"]),
        (SearchTerms(min_reward=-1.0, max_reward=0.0), ["1-0-3", "1-0-1"]),
        (SearchTerms(stop="length"), ["1-0-3", "1-0-2"]),
        (SearchTerms(invalid=True), ["1-0-2"]),
        (SearchTerms(invalid=False, last_step=1), ["1-0-3", "1-0-1", "1-0-0"]),
        (SearchTerms(correct=True), ["1-0-0"]),
        (SearchTerms(correct=False), ["1-0-3", "1-0-1"]),
        (SearchTerms(text="x", first_step=2, last_step=2), ["2-1-0", "2-0-0"]),
        (SearchTerms(first_step=9), []),
    ],
)
def test_what_is_found_newest_first(run: Path, wanted: SearchTerms, expected: list[str]) -> None:
    found = search(run, wanted, before=None, limit=50)
    assert (places(found), found["next"]) == (expected, None)


def test_a_row(run: Path) -> None:
    (row,) = search(run, SearchTerms(invalid=True), before=None, limit=50)["rows"]
    assert row == {
        "step": 1,
        "group_index": 0,
        "completion_index": 2,
        "problem_id": "train-1",
        "text": "\0 \\boxed{7}",
        "reward": None,
        "advantage": 0.0,
        "length": 2,
        "stop_reason": "length",
        "invalid_reason": "exact: timed out",
        "correct": None,
        "prompt": None,
    }


def test_it_says_how_far_it_looked(run: Path) -> None:
    everything = search(run, SearchTerms(text="nowhere"), before=None, limit=50)
    assert everything == {"rows": [], "next": None, "searched": 3, "looked_at": 10, "back_to": 1}
    one = search(run, SearchTerms(text="axb"), before=None, limit=1)
    assert (one["next"], one["searched"], one["looked_at"], one["back_to"]) == ("3-0-0", 1, 2, 3)

    # A full page without a next is the last.
    assert search(run, SearchTerms(text="axb"), before=None, limit=3)["next"] is None
    assert search(run, SearchTerms(text="axb"), before=None, limit=2)["next"] == "2-1-0"


@pytest.mark.parametrize(("limit", "piece"), [(1, 1), (2, 3), (50, 4), (2, 4)])
def test_pieces_and_pages_lose_nothing(run: Path, monkeypatch: pytest.MonkeyPatch, limit: int, piece: int) -> None:
    """A call that has no time looks at one piece; steps that come meanwhile are newer and do not disturb."""
    monkeypatch.setattr(search_module, "_ROWS", piece)
    found, looked, before = list[str](), 0, None
    with RunRecord.reopen(run, 3) as record:
        for turn in range(40):
            page = search(run, SearchTerms(text="a"), before=before, limit=limit, seconds=0.0)
            assert page["looked_at"] <= piece
            found, looked = found + places(page), looked + page["looked_at"]
            if page["next"] is None:
                break
            before = tuple(map(int, page["next"].split("-")))
            add_step(record, 4 + turn, [PLAIN])
        else:
            pytest.fail("it never ended")
    # "Äpfel" holds no plain a; the others are "axb", "a_b" and "Straße".
    assert found == ["3-0-0", "2-1-0", "2-0-0", "1-0-3", "1-0-1"]
    assert looked == 10


def test_time_is_what_bounds_a_call(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "_ROWS", 2)
    short = search(run, SearchTerms(text="nowhere"), before=None, limit=50, seconds=0.0)
    assert (short["rows"], short["next"], short["looked_at"]) == ([], "3-0-0", 2)
    assert search(run, SearchTerms(text="nowhere"), before=None, limit=50, seconds=60.0)["next"] is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("needle" + "x" * 294, "needle" + "x" * 294),
        ("needle" + "x" * 295, "needle" + "x" * 293 + "…"),
        ("a" * 500 + "NEEDLE" + "b" * 500, "…" + "a" * 79 + "NEEDLE" + "b" * 213 + "…"),
        ("a" * 500 + "needle", "…" + "a" * 79 + "needle"),
        # Folded, each of these letters is two.
        ("İ" * 300 + "needle" + "İ" * 300, None),
        ("ß" * 400 + "needle", None),
    ],
)
def test_of_a_long_text_the_part_that_was_searched_is_shown(tmp_path: Path, text: str, shown: str | None) -> None:
    run = make_run(tmp_path / "run", [Made((1.0,), texts=(text,))])
    (row,) = search(run, SearchTerms(text="Needle"), before=None, limit=1)["rows"]
    assert "needle" in row["text"].lower()
    assert row["text"] == (shown or row["text"])
    assert len(row["text"]) <= 300


@pytest.mark.usefixtures("run")
def test_by_route(client: TestClient) -> None:
    def asked(query: str) -> list[str]:
        return places(client.get(f"/api/runs/run/search?{query}").json())

    assert asked("text=50%25&min_reward=1&max_reward=2&stop=end&invalid=0&correct=1&step=1") == ["1-0-0"]
    assert asked("text=50%25&min_reward=2") == []
    assert asked("step=2-3&text=yes") == ["3-0-1", "2-1-1", "2-0-1"]
    assert asked("step=3-&text=yes") == ["3-0-1"]
    assert asked("step=-2&text=yes") == ["2-1-1", "2-0-1"]
    assert asked("invalid=1&text=&stop=&min_reward=") == ["1-0-2"]
    assert asked("limit=2&before=2-0-1") == ["2-0-0", "1-0-3"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("min_reward=nan", "min_reward: expected a number such as 0.5, got 'nan'"),
        ("max_reward=much", "max_reward: expected a number"),
        ("stop=never", "stop: expected one of end, stop_string, length, got 'never'"),
        ("invalid=yes", "invalid: expected one of 1, 0, got 'yes'"),
        ("correct=2", "correct: expected one of 1, 0"),
        ("step=x", "step: expected a step such as 7 or a range such as 3-10, got 'x'"),
        ("step=-", "step: expected a step"),
        ("step=" + "7" * 20, "step: expected a step"),
        ("before=1-2", "before: expected what another call gave as `next`, got '1-2'"),
        ("limit=201", "limit: expected a whole number from 1 to 200"),
    ],
)
@pytest.mark.usefixtures("run")
def test_what_is_asked_wrongly_is_said(client: TestClient, query: str, said: str) -> None:
    found = client.get(f"/api/runs/run/search?{query}")
    assert (found.status_code, said in found.json()["error"]) == (400, True)


def test_prompts_are_searched(root: Path, client: TestClient) -> None:
    second = Made((0.5,), problem="b-2")
    make_run(root / "run", [Made((1.0,), problem="ÄPFEL-1"), Made((0.0,), problem="b-2")], [second])

    def found(**wanted: str) -> list[tuple[int, str, str | None]]:
        rows = client.get("/api/runs/run/search", params=wanted).json()["rows"]
        return [(row["step"], row["problem_id"], row["prompt"]) for row in rows]

    assert found(prompt="prompt of äpfel") == [(1, "ÄPFEL-1", "prompt of ÄPFEL-1")]
    assert found(prompt="of b-2") == [(2, "b-2", "prompt of b-2"), (1, "b-2", "prompt of b-2")]
    assert found(prompt="of b-2", min_reward="0.5") == [(2, "b-2", "prompt of b-2")]
    assert found(prompt="nowhere") == []
    assert [prompt for *_, prompt in found(text="text")] == [None] * 3


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


# Pixels of the color of marks, in the columns of a chart's canvas.
