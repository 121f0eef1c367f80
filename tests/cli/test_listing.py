from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from grouprl.cli.listing import show_tasks
from grouprl.tasks.named import TASKS
from grouprl.types import UserError


def screen(name: str | None = None, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_tasks(name, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_every_task_is_listed_with_its_rewards_and_a_solution(width: int) -> None:
    pytest.importorskip("reasoning_gym")
    text = screen(width=width)
    assert all(name in text for name in TASKS)
    for shown in ("45 + (91 - 81)", r"\boxed{19}", r"\boxed{puorg}", "needs grouprl[gym]", "1.0 countdown (verifier)"):
        assert shown in text
    assert max(map(len, text.splitlines())) <= width


def test_without_the_extra_the_others_are_still_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    text = screen()
    assert "not installed" in text
    assert "45 + (91 - 81)" in text
    with pytest.raises(UserError, match=r"pip install 'grouprl\[gym\]'"):
        screen("reasoning_gym")


def test_one_task_has_its_settings_and_three_problems() -> None:
    text = screen("countdown")
    assert text.count("Write an expression that equals") == 3
    assert all(setting in text for setting in ("task.difficulty", "task.arguments.use_all", "task.seed"))
    assert "numbers: [81, 91, 45]" in text
    assert screen("gsm8k").count("How many pens does Ben have now?") == 2  # the prompt and its column


def test_reasoning_gym_lists_its_data_sets_and_their_arguments() -> None:
    pytest.importorskip("reasoning_gym")
    text = screen("reasoning_gym:spell_backward")
    assert text.count("Spell this word backward") == 3
    assert "task.arguments.max_word_len" in text


@pytest.mark.slow
def test_reasoning_gym_lists_all_of_them_on_a_line_each() -> None:
    pytest.importorskip("reasoning_gym")
    lines = screen("reasoning_gym").splitlines()
    assert len([line for line in lines if line.startswith("reasoning_gym:")]) == len(lines) - 1 >= 100


def test_columns_of_several_lines_are_blocks_below_their_names() -> None:
    lines = [line.rstrip() for line in screen("code").splitlines()]
    place = lines.index("solution:")
    assert lines[place + 1].startswith("  def ")
    assert lines[place + 2].startswith("      ")
    tests = lines.index("test_list:")
    assert lines[tests + 1].startswith("  assert ")
    assert lines[tests + 2].startswith("  assert ")


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(UserError, match=r"expected one of .*got 'countdwn': did you mean 'countdown'"):
        screen("countdwn")


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"], ["tasks"]], ids=" ".join)
def test_a_command_that_computes_nothing_loads_no_torch(words: list[str]):
    code = f"import sys; sys.argv = ['grouprl', *{words!r}]\ntry:\n    from grouprl.cli import main; main()\nfinally:\n"
    code += "    print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "False"
