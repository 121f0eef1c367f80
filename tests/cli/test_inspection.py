"""What `grouprl sample` shows of completions that cannot be judged, on a narrow terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from grouprl.cli import inspection
from grouprl.config.run import PolicyConfig, RunConfig
from grouprl.evaluation.evaluate import Evaluation
from grouprl.evaluation.paired import ProblemResults
from grouprl.run.opened import OpenedRun
from grouprl.trainer.trial import SampledGroup
from recorded_episodes import SCRIPT, episode_group
from small_runs import ROWS, grouprl, small_settings, write_rows

REWARDS = """
def torn(prompts, completions, completion_ids, **columns):
    if len(completion_ids) == 1:
        raise ValueError("a reason that is rather too long to stand beside anything else on one line")
    raise ValueError("all together")


def mute(prompts, completions, completion_ids, **columns):
    return [None] * len(completions)


def fine(prompts, completions, completion_ids, **columns):
    return [1.0] * len(completions)
"""


def sampled(tiny: Path, folder: Path, *names: str) -> str:
    (folder / "rewards.py").write_text(REWARDS)
    write_rows(folder / "rows.jsonl", ROWS)
    rewards = [{"name": name, "path": str(folder / "rewards.py")} for name in names]
    ended = grouprl(
        "sample", tiny, "--task", "jsonl", f"task.path={folder / 'rows.jsonl'}", f"rewards={json.dumps(rewards)}",
        "rollout.group_size=3", "rollout.max_tokens=5", "model.threads=1", "rollout.scoring.workers=1",
    )  # fmt: skip
    assert ended.code == 0, ended.text
    assert max(cell_len(line) for line in ended.out.splitlines()[:-1]) <= 80  # the last one is a command
    return ended.text


def test_an_invalid_completion_shows_its_reason_in_full(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = sampled(tiny, tmp_path, "torn", "fine")
    reason = "rather too long to stand beside anything else on one line"
    assert len(re.findall(rf"\d invalid: torn raised ValueError: a reason that is {reason}", text)) == 3
    assert len(re.findall(r"torn - fine 1\.0", text)) == 3
    assert "0 of 3 completions with a valid reward; a comparison needs two" in text
    assert "nan" not in text


def test_a_reward_that_does_not_apply_is_a_dash(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = sampled(tiny, tmp_path, "mute", "fine")
    assert len(re.findall(r"\d reward 1\.00 advantage \+0\.000 5 tokens, ended by length mute - fine 1\.0", text)) == 3
    assert "group mean 1.000, population deviation 0.000" in text


def test_escapes_that_the_model_wrote_do_not_reach_the_terminal(tiny: Path) -> None:
    prompt = "a\x1b[2J\x07\u202eb\x9b31m\tc :smile: [bold]d"
    ended = grouprl(
        "sample", tiny, "--prompt", prompt, "rollout.max_tokens=2", "rollout.group_size=1", "model.threads=1"
    )
    assert ended.code == 0, ended.text
    assert not set("\x1b\x07\u202e\x9b") & set(ended.out)
    assert r"a\x1b[2J\x07\u202eb\x9b31m" in ended.out
    assert ":smile: [bold]d" in ended.out


def test_an_episode_is_printed_as_a_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(inspection, "sample_group", lambda *_: SampledGroup(episode_group(), (), ()))
    inspection.show_group(RunConfig(), problem=0, prompt="17 * 3?")
    out = capsys.readouterr().out
    said = [line.strip() for line in out.splitlines()]
    start = said.index("[assistant]")
    assert said[start + 2 : start + 9] == [
        '[tool] calculate {"expression": "17 * 3"} (0.01 s)',
        "51",
        "[assistant]",
        "Is it 51?",
        "[user]",
        "Yes.",
        "[assistant]",
    ]
    assert "(ended: finished; the environment's reward: 1)" in said
    assert '[tool] calculate {"expression": "9 ** 9 ** 9"} (10.00 s, timeout)' in said
    assert "(ended: timeout; invalid: timeout: expected an answer within 10 s, got none)" in said
    assert SCRIPT in out
    assert not set("\x1b\u202e") & set(out)


@pytest.mark.usefixtures("no_page")
def test_an_evaluation_on_rows_that_the_run_trained_on_says_so(tmp_path: Path) -> None:
    """Without splits of its own, a file's rows are trained on, but for the split that the run evaluates."""
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(60)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    quick = {"steps": 1, "evaluation": {"problems": 1, "samples": 0}}
    ended = grouprl("train", "--model", "abacus", "--task", path, *small_settings(tmp_path / "runs", **quick))
    assert ended.code == 0, ended.text
    for split, said in (("test", False), ("validation", True)):
        ended = grouprl("eval", tmp_path / "runs" / "run", f"evaluation.split={split}")
        assert ended.code == 0, ended.text
        line = f"The run evaluates test: if its data has no split {split}, it trained on these rows."
        assert (line in ended.err) is said


def test_an_evaluation_has_the_problems_that_the_run_holds_out(tiny: Path, tmp_path: Path) -> None:
    """With validation rows and no test rows, a run evaluates the former and trains on all of train."""
    for split, count in (("train", 30), ("validation", 2)):
        rows = [{"prompt": f"What is {n} + 1? ({split})", "answer": str(n + 1)} for n in range(count)]
        write_rows(tmp_path / f"{split}.jsonl", rows)
    given = ("rollout.max_tokens=2", "evaluation.samples=0", "model.threads=1", "task.name=jsonl")
    ended = grouprl("eval", tiny, *given, f"task.path={tmp_path}", "--json")
    assert ended.code == 0, ended.text
    assert json.loads(ended.out)["problems"] == 2


def test_pass_at_k_of_two_models_is_compared_on_the_same_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluated(run: OpenedRun, *_: object, **__: object) -> Evaluation:
        correct = {"after": (2, 0), "before": (1, 0)}[run.config.model.path]
        shares = {"pass_at_1": sum(correct) / 4, "pass_at_2": sum(map(bool, correct)) / 2}
        metrics = {**shares, **{f"{name}_interval": (0.0, 1.0) for name in shares}}
        return Evaluation(metrics, ProblemResults(("p", "q"), (0, 0), correct, samples=2), (), (), ())

    monkeypatch.setattr(inspection, "evaluate_model", evaluated)
    monkeypatch.setenv("COLUMNS", "120")
    models = {name: RunConfig(model=PolicyConfig(path=name)) for name in ("after", "before")}
    inspection.show_pass_at(models, as_json=False)
    rows = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if "%" in line and "│" in line}
    assert "50.0% (0.0% to 100.0%)" in rows["1"]
    assert "+25.0% (" in rows["1"]
    inspection.show_pass_at(models, as_json=True)
    found = json.loads(capsys.readouterr().out)
    # At k = 1 the two differ by a half on p and not on q; of two completions both have one right on p.
    assert found["differences"]["pass_at_1"]["mean"] == 0.25
    assert (found["differences"]["pass_at_2"]["mean"], found["differences"]["pass_at_2"]["pairs"]) == (0.0, 2)
    assert found["models"]["after"]["correct"] == [2, 0]
    assert (found["models"]["before"]["samples"], found["models"]["before"]["pass_at_1"]) == (2, 0.25)
