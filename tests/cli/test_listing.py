"""What `grouprl tasks` and `grouprl settings` list: every task with a solution, every key once."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from grouprl.algorithms.named import NAMED
from grouprl.cli.listing import show_tasks
from grouprl.cli.settings import algorithm_rows, setting_rows, show_settings
from grouprl.config.algorithm import name_here
from grouprl.config.run import RunConfig, dump_config
from grouprl.config.yaml_text import read_yaml
from grouprl.tasks.named import TASKS
from grouprl.tools.imported.keys import TRL, VERL
from grouprl.types import UserError


def screen(name: str | None = None, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_tasks(name, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def settings_screen() -> str:
    console = Console(file=io.StringIO(), width=400)
    show_settings(console=console)
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


def test_every_setting_of_a_run_is_listed_with_its_default() -> None:
    rows = [re.split(r" {2,}", line.strip()) for line in settings_screen().splitlines()[1:]]
    shown = {row[0]: row[1] for row in rows}
    tree = read_yaml(dump_config(RunConfig()))

    def leaves(part: Any, above: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in part.items():
            if isinstance(value, dict) and value:
                yield from leaves(value, f"{above}{name}." if above != "algorithm." else above)
            elif value is not None or above != "algorithm.":
                yield f"{above}{name}", value

    for key, value in leaves(tree):
        assert read_yaml(shown[key]) == value, key
    assert shown["model.lora"] == "null"
    assert "model.lora.rank" in shown
    with pytest.raises(UserError, match="did you mean 'rollout'"):
        show_settings("rolout")


def test_names_of_other_trainers_lead_to_settings_that_exist() -> None:
    known = {line.split()[0] for line in settings_screen().splitlines()}
    for name in (*TRL, *(key.rpartition(".")[2] for key in VERL), "batch_size", "max_new_tokens", "wandb"):
        if here := name_here(name).partition(" is here ")[2]:
            key = re.split(r"[=, ;]", here)[0]
            assert key in known or key.rpartition(".")[0] in known or key in ("algorithm", "trackers", "rewards"), name


def test_columns_of_several_lines_are_blocks_below_their_names() -> None:
    lines = [line.rstrip() for line in screen("code").splitlines()]
    for name, first, second in (("solution:", "  def ", "      "), ("test_list:", "  assert ", "  assert ")):
        place = lines.index(name)
        assert lines[place + 1].startswith(first)
        assert lines[place + 2].startswith(second)


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(UserError, match=r"expected one of .*got 'countdwn': did you mean 'countdown'"):
        screen("countdwn")


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"], ["tasks"]], ids=" ".join)
def test_a_command_that_computes_nothing_loads_no_torch(words: list[str]):
    code = f"import sys; sys.argv = ['grouprl', *{words!r}]\ntry:\n    from grouprl.cli import main; main()\nfinally:\n"
    code += "    print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "False"


def test_each_key_is_listed_once_and_has_a_meaning() -> None:
    keys = [key for key, _, _ in setting_rows()]
    assert len(keys) == len(set(keys))
    assert [key for key, _, meaning in setting_rows() if not meaning] == []


def test_a_key_that_must_be_given_has_no_default() -> None:
    (shown,) = (default for key, default, _ in setting_rows() if key == "rewards.0.name")
    assert shown == ""


def test_choices_stand_before_the_meaning() -> None:
    meanings = {key: meaning for key, _, meaning in setting_rows()}
    assert meanings["learner.schedule"].startswith("constant | linear | cosine: ")
    # Several kinds of a part, each with one value of its own.
    assert meanings["algorithm.surrogate"].startswith("clip | cispo | plain | sapo | gmpo: ")
    # A part that an algorithm may be without.
    assert meanings["algorithm.critic_kind"].startswith("none | copy | shared: ")
    assert "|" not in meanings["algorithm.clip_high"]


def test_the_value_of_each_algorithm_is_one_of_the_choices() -> None:
    for name, algorithm in NAMED.items():
        for key, value, meaning in algorithm_rows(algorithm):
            if " | " in meaning:
                assert value in meaning.partition(":")[0].split(" | "), (name, key)
