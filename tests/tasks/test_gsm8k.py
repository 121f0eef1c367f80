from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from grouprl.problems.gsm8k import Gsm8k
from grouprl.problems.math_problems import MathProblems
from grouprl.received import hub
from grouprl.tasks.answers import final_text
from grouprl.tasks.base import Split
from grouprl.tasks.named import load_task
from grouprl.types import UserError
from small_runs import gsm8k_row, write_rows
from verifying import verdict

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def questions(task: Gsm8k, split: Split) -> list[str]:
    return [problem.columns["question"] for problem in task.problems(split)]


def test_the_cut_ignores_the_order_of_lines_and_each_split_keeps_it(tmp_path: Path) -> None:
    rows = [gsm8k_row(n) for n in range(50)]
    forward = Gsm8k(str(write_rows(tmp_path / "a.jsonl", rows)))
    backward = Gsm8k(str(write_rows(tmp_path / "b.jsonl", rows[::-1])))
    for split in SPLITS:
        assert questions(forward, split) == questions(backward, split)[::-1]
    order = [r["question"] for r in rows]
    assert questions(forward, "train") == [text for text in order if text in questions(forward, "train")]


def test_fewer_than_three_questions_share_what_is_held_out(tmp_path: Path) -> None:
    task = Gsm8k(str(write_rows(tmp_path / "a.jsonl", [gsm8k_row(n) for n in range(3)])))
    assert [len(task.problems(split)) for split in SPLITS] == [1, 1, 1]
    two = Gsm8k(str(write_rows(tmp_path / "b.jsonl", [gsm8k_row(0), gsm8k_row(1), gsm8k_row(1)])))
    assert two.problems("validation") == two.problems("test") != two.problems("train")
    one = Gsm8k(str(write_rows(tmp_path / "c.jsonl", [gsm8k_row(0)])))
    assert one.problems("validation") == one.problems("test") == one.problems("train")


def test_a_folder_keeps_its_test_file_and_gives_a_twentieth_of_train_to_validation(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", [gsm8k_row(n) for n in range(100)])
    write_rows(tmp_path / "test.jsonl", [gsm8k_row(n) for n in range(119, 94, -1)])  # five leak into train
    task = load_task("gsm8k", path=str(tmp_path))
    assert [p.columns["question"] for p in task.problems("test")] == [
        gsm8k_row(n)["question"] for n in range(119, 94, -1)
    ]
    assert (len(task.problems("validation")), len(task.problems("train"))) == (5, 90)
    everything = [p.columns["question"] for split in SPLITS for p in task.problems(split)]
    assert len(set(everything)) == len(everything) == 120


def test_the_first_of_two_equal_questions_counts(tmp_path: Path) -> None:
    rows = [gsm8k_row(n) for n in range(20)] + [gsm8k_row(3, answer="wrong\n#### 99")]
    task = Gsm8k(str(write_rows(tmp_path / "a.jsonl", rows)))
    answers = [p.columns["answer"] for split in SPLITS for p in task.problems(split)]
    assert len(answers) == 20
    assert not any("99" in answer for answer in answers)


def test_the_form_of_a_problem(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [gsm8k_row(n) for n in range(10)])
    problem = Gsm8k(str(path)).problems("train")[0]
    assert problem.id == "gsm8k/train/0"
    assert [message["role"] for message in problem.prompt if isinstance(message, Mapping)] == ["system", "user"]
    assert problem.prompt_text.startswith("Reason step by step, and put your final answer within \\boxed{}.\nBen has")
    bare = load_task("gsm8k", path=str(path), system_prompt="").problems("train")[0]
    assert bare.prompt == ({"role": "user", "content": problem.columns["question"]},)
    own = load_task("gsm8k", path=str(path), system_prompt="Count.")
    assert own.problems("train")[0].prompt_text.startswith("Count.\nBen has")
    assert own.default_rewards == {"boxed_format": 0.5, "correct_answer": 1.0}


def test_a_gold_completion_is_the_solution_without_its_marks() -> None:
    problem = Gsm8k.example()
    assert Gsm8k().gold(problem) == ("Ben has 4 * 6 = 24 pens.\nThen he has 24 - 5 = 19 pens.\n\\boxed{19}")
    assert verdict(Gsm8k(), problem, Gsm8k().gold(problem)) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "at least one row"),
        (f"{json.dumps(gsm8k_row(1))}\n\n[1, 2]\n", r"a\.jsonl:3: expected a JSON object, got \[1, 2\]"),
        ('{"problem": "1 + 1", "solution": "#### 2"}', r":1: expected a column 'question', got problem, solution"),
        ('{"question": "1 + 1", "answer": "2"}', r":1: expected a solution that ends in '#### 7', got '2'"),
        ('{"question": "1 + 1", "answer": 2}', r":1: expected text in column 'answer', got 2"),
        ('{"question": " ", "answer": "#### 2"}', r":1: expected text in column 'question', got ' '"),
    ],
)
def test_bad_files_are_reported_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        Gsm8k(str(tmp_path / "a.jsonl")).problems("train")


def test_a_file_that_is_not_there_or_not_text_or_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}')
    (tmp_path / "a.txt").write_text("question,answer\n")
    for name, message in (
        ("none.jsonl", "expected a data file at .*none.jsonl, found none"),
        ("latin.jsonl", "expected UTF-8 text in .*latin.jsonl"),
        ("a.txt", r"expected a \.jsonl, \.parquet, \.json, \.csv, \.tsv file, got .*a\.txt"),
    ):
        with pytest.raises(UserError, match=message):
            Gsm8k(str(tmp_path / name)).problems("train")


@pytest.mark.parametrize(("path", "package"), [(None, "datasets"), ("a.parquet", "pyarrow")])
def test_a_missing_extra_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None, package: str
) -> None:
    for module in ("datasets", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=rf"expected the package {package}, got none: .*grouprl\[data\]"):
        Gsm8k(path and str(tmp_path / path)).problems("train")


def stand_in_for_the_hub(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    module = ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    module.config = SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


@pytest.mark.parametrize(("path", "place"), [(None, ("openai/gsm8k", "main")), ("hub:me/mine", ("me/mine", None))])
def test_the_hub_has_an_address(
    monkeypatch: pytest.MonkeyPatch, path: str | None, place: tuple[str, str | None]
) -> None:
    asked = []

    def load(repository: str, configuration: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((repository, configuration, split))
        return [gsm8k_row(n) for n in (range(100) if split == "train" else range(100, 110))]

    stand_in_for_the_hub(monkeypatch, load)
    task = load_task("gsm8k", path=path)
    assert [len(task.problems(split)) for split in SPLITS] == [95, 5, 10]
    assert asked == [(*place, "train"), (*place, "test")]


@pytest.mark.parametrize("error", [ConnectionError("offline"), ValueError("Couldn't find cache"), FileNotFoundError()])
def test_without_a_network_a_local_copy_is_proposed(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load(*_: str, split: str) -> list[dict[str, Any]]:
        raise error

    stand_in_for_the_hub(monkeypatch, load)
    with pytest.raises(UserError, match=r"openai/gsm8k .*got " + type(error).__name__ + r".*task\.path=FILE\.jsonl"):
        Gsm8k().problems("train")


def test_a_hub_that_cannot_be_found_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library, which asks an unknown host for half a minute."""
    pytest.importorskip("datasets")
    import datasets
    from huggingface_hub import constants

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror("no network")

    for place, name in (
        (constants, "HF_HUB_OFFLINE"),
        (datasets.config, "HF_HUB_OFFLINE"),
        (datasets.config, "HF_DATASETS_OFFLINE"),
    ):
        monkeypatch.setattr(place, name, False)
    monkeypatch.setattr(hub, "_OFFLINE", False)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    asked_at = time.monotonic()
    with pytest.raises(UserError, match=r"openai/gsm8k from the Hugging Face hub.*task\.path=FILE\.jsonl"):
        Gsm8k().problems("train")
    assert time.monotonic() - asked_at < 8


def row(number: int, **change: Any) -> dict[str, Any]:
    return {
        "problem": f"What is half of ${number}$?",
        "solution": f"It is $\\boxed{{\\frac{{{number}}}{{2}}}}$.",
        "level": "Level 1",
        "type": "Prealgebra",
        **change,
    }


def test_a_file_is_cut_by_the_problem_and_its_columns_are_kept(tmp_path: Path) -> None:
    task = load_task("math", path=str(write_rows(tmp_path / "a.jsonl", [row(n) for n in range(100)])))
    assert [len(task.problems(split)) for split in SPLITS] == [80, 10, 10]
    problem = task.problems("train")[0]
    assert problem.id == "math/train/0"
    number = problem.columns["problem"].split("$")[1]
    assert problem.columns["answer"] == f"\\frac{{{number}}}{{2}}"
    assert (problem.columns["level"], problem.columns["type"]) == ("Level 1", "Prealgebra")
    assert problem.prompt[-1] == {"role": "user", "content": f"What is half of ${number}$?"}


def test_gold_is_the_solution_or_the_boxed_answer(tmp_path: Path) -> None:
    rows = [row(2), row(4, answer="2"), {"problem": "What is 1 + 2?", "answer": 3}]
    write_rows(tmp_path / "test.jsonl", rows)
    write_rows(tmp_path / "train.jsonl", [row(n) for n in range(10, 14)])
    task = MathProblems(str(tmp_path), verifier="correct_answer")
    golds = [task.gold(problem) for problem in task.problems("test")]
    assert golds == [rows[0]["solution"], r"\boxed{2}", r"\boxed{3}"]
    for problem, gold in zip(task.problems("test"), golds, strict=True):
        assert final_text(gold or "") == problem.columns["answer"]
        assert verdict(task, problem, gold or "") == 1.0
        assert verdict(task, problem, r"\boxed{17}") == 0.0
    assert verdict(task, task.problems("test")[0], r"\boxed{1}") == 1.0


def test_answers_are_compared_by_their_meaning() -> None:
    pytest.importorskip("math_verify")
    from grouprl.checks.symbolic import MathVerify

    task, problem = MathProblems(), MathProblems.example()
    texts = [task.gold(problem) or "", r"\boxed{3.5}", r"\boxed{3\frac{1}{2}}", r"\boxed{2}", "3.5"]
    answers = [problem.columns["answer"]] * len(texts)
    values = MathVerify()([problem.prompt] * len(texts), texts, [[]] * len(texts), answer=answers)
    assert (values[0], values[1], values[3], values[4]) == (1.0, 1.0, 0.0, 0.0)
    assert task.default_rewards == {"boxed_format": 0.5, "math_verify": 1.0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"problem": "?", "solution": "7"}], r"a\.jsonl:1: expected a solution with its answer in \\boxed"),
        ([row(1), {"problem": "?", "answer": " "}], r"a\.jsonl:2: expected an answer of 1 to 10000 characters"),
        (
            [{"problem": "?", "answer": [7]}],
            r"a\.jsonl:1: expected text or a finite number in column 'answer', got \[7\]",
        ),
        ([{"solution": r"\boxed{7}"}], r":1: expected a column 'problem', got solution"),
        ([{"problem": "?"}], r":1: expected a column 'solution', got problem"),
    ],
)
def test_bad_rows_are_reported_with_their_line(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MathProblems(str(write_rows(tmp_path / "a.jsonl", rows))).problems("train")


def test_nothing_is_loaded_from_the_hub_unless_asked_for() -> None:
    with pytest.raises(UserError, match=r"task\.path=FILE\.jsonl .* or task\.path=hub:OWNER/NAME"):
        MathProblems().problems("train")


def test_longer_solutions_can_be_left_out(tmp_path: Path) -> None:
    steps = "2 + 3 = <<2+3=5>>5 pens.\n" * 3
    rows = [gsm8k_row(n, answer=f"{steps}#### {n}") if n % 2 else gsm8k_row(n) for n in range(40)]
    path = str(write_rows(tmp_path / "a.jsonl", rows))
    every, short = Gsm8k(path), Gsm8k(path, most_steps=2)
    assert {p.columns["question"] for split in SPLITS for p in short.problems(split)} == {
        row["question"] for row in rows[::2]
    }
    for split in SPLITS:  # what is left stays in its split
        assert set(questions(short, split)) <= set(questions(every, split))
    with pytest.raises(UserError, match=r"task\.arguments\.most_steps: expected a number above 0, got 0: change it"):
        load_task("gsm8k", path=path, arguments={"most_steps": 0})
