"""docs/rewards.md against the code: names, arguments, configurations, numbers."""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from grouprl.checks.json_schema import JsonSchema
from grouprl.problems.formats import Regex, ThinkFormat
from grouprl.problems.lengths import CosineLength, NearLength
from grouprl.problems.repetition import Repetition
from grouprl.rewards.resolve import REWARDS, STEP_REWARDS

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
BUILT_IN: dict[str, Any] = {
    "cosine_length": CosineLength, "json_schema": JsonSchema, "near_length": NearLength, "regex": Regex,
    "repetition": Repetition, "think_format": ThinkFormat,
}  # fmt: skip


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_built_in_reward_has_a_section_and_a_row() -> None:
    names = {*REWARDS, *STEP_REWARDS, *BUILT_IN}
    assert names - set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == set()
    assert names - set(re.findall(r"^\| \[`(\w+)`\]\(#\1\) ", PAGE, re.MULTILINE)) == set()


def test_examples_on_the_page_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    runner, parser = doctest.DocTestRunner(verbose=False), doctest.DocTestParser()
    for block in blocks("python"):
        runner.run(parser.get_doctest(block, {}, "rewards.md", None, 0))
    tried = runner.summarize(verbose=False)
    assert tried.attempted > 5
    assert tried.failed == 0, capsys.readouterr().out


def test_own_rewards_on_the_page_work(tmp_path: Path) -> None:
    correct, mentions, new = (block for block in blocks("python") if block.startswith("# my_rewards.py"))
    (tmp_path / "one.py").write_text(correct, encoding="utf-8")
    (tmp_path / "two.py").write_text(mentions, encoding="utf-8")
    (tmp_path / "three.py").write_text(new, encoding="utf-8")
    one, two, three = (runpy.run_path(str(tmp_path / name)) for name in ("one.py", "two.py", "three.py"))
    chat = [[{"role": "assistant", "content": text}] for text in ("It is therefore Blue", "blue", "")]
    keywords = {"prompts": [[]] * 3, "completions": chat, "completion_ids": [[1]] * 3}
    assert one["correct"](**keywords, answer=["Blue", "Blue", None]) == [1.0, 0.0, None]
    assert two["Mentions"]("BLUE", ignore_case=False)(**keywords) == [0.0, 0.0, 0.0]
    assert two["Mentions"]("blue", ignore_case=True)(**keywords) == [1.0, 1.0, 0.0]
    assert three["new"](["?"] * 4, ["a", "b", "a", ""], [[1]] * 4) == [0.0, 1.0, 0.0, 1.0]
