"""Runs with a chat template of their own: what they say, record and save, and what a resume and another user refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from grouprl.models.load import load_tokenizer
from small_runs import ROWS, grouprl, rollouts, small_settings, write_rows

DROPS = (
    "{% for m in messages if m.role == 'user' %}{{ mark + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def chats(row: dict[str, object]) -> list[dict[str, object]]:
    system, user = {"role": "system", "content": "Be short."}, {"role": "user", "content": row["prompt"]}
    return [system, user, {"role": "assistant", "content": "Which one?"}, {"role": "user", "content": "All."}]


@pytest.fixture
def settings(tiny: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "own.jinja").write_text(DROPS)
    write_rows(tmp_path / "rows.jsonl", [{**row, "prompt": chats(row)} for row in ROWS])
    (tmp_path / "short.py").write_text(
        "def short(completions, **columns):\n    return [1.0 * len(str(c)) for c in completions]"
    )
    task = {"name": "jsonl", "path": str(tmp_path / "rows.jsonl"), "arguments": {"verifier": None}}
    model = {"path": str(tiny), "chat_template": str(tmp_path / "own.jinja"), "chat_template_kwargs": {"mark": "#"}}
    rewards = [{"name": "short", "path": str(tmp_path / "short.py")}]
    return small_settings(tmp_path / "runs", task=task, steps=1, model=model, rewards=rewards)


def test_a_run_with_a_template_of_its_own(settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, run = grouprl("train", *settings), tmp_path / "runs" / "run"
    assert ended.code == 0, ended.text
    assert ended.text.count("has no system role: GroupRL puts the system message at the start of the first") == 1
    assert ended.text.count("drops or rewrites messages") == 1
    assert "lacks 'Which one?'" in ended.text
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["chat_template_kwargs"] == {"mark": "#"}
    saved = load_tokenizer(str(run / "checkpoints" / "step-000001"))
    for prompt_ids, _ in rollouts(run, "SELECT prompt_ids, prompt FROM problems"):
        text = saved.decode(np.frombuffer(prompt_ids, "<i4").tolist())
        assert text.startswith("#Be short.\n\nSay ")
        assert text.endswith(".#All.<|assistant|>")
    # A checkpoint needs no file; a resume needs the same, and another user's run is not trusted.
    assert grouprl("train", "--resume", *settings, "steps=2").code == 0
    (tmp_path / "own.jinja").rename(tmp_path / "moved.jinja")
    assert grouprl("eval", run / "checkpoints" / "step-000001", "--json").code == 0
    (tmp_path / "own.jinja").write_text(DROPS + " ")
    changed = grouprl("train", "--resume", *settings, "steps=3", "--trust-code", tmp_path / "own.jinja")
    assert changed.code == 2
    assert "expected the chat template that" in changed.text
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    received = grouprl("train", run / "config.yaml", f"runs_dir={tmp_path}/more", "rewards=[{name: boxed_format}]")
    assert received.code == 2
    assert f"names the code file {tmp_path / 'own.jinja'}, which you have not run here" in received.text


def test_the_recipe_r1_zero_trains_a_base_model_on_think_tags(tmp_path: Path) -> None:
    small = [text for text in small_settings(tmp_path) if not text.startswith(("learner", "steps"))]
    ended, run = grouprl("train", "r1_zero", "model.path=abacus", "steps=1", "name=run", *small), tmp_path / "run"
    assert ended.code == 0, ended.text
    asked = rollouts(run, "SELECT prompt_ids, prompt FROM problems")
    for prompt_ids, prompt in asked:
        text = load_tokenizer("abacus").decode(np.frombuffer(prompt_ids, "<i4").tolist())
        assert text.startswith(
            "A conversation between User and Assistant. The user asks a question, and the Assistant "
        )
        assert ", and the Assistant solves it. First think about the question" in text
        assert text.endswith("<answer> answer </answer>\nUser: " + prompt.split("\n")[-1] + "\nAssistant:")
    assert {name for (row,) in rollouts(run, "SELECT components FROM completions") for name in json.loads(row)} == {
        "correct_answer",
        "think_format",
    }
