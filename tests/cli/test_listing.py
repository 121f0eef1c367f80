"""What `grouprl tasks`, `settings`, TAB and `sample` show: every task and key, and completions on a narrow terminal."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from forked import forked
from grouprl.algorithms.named import NAMED
from grouprl.cli import app, completion, inspection
from grouprl.cli.listing import show_tasks
from grouprl.cli.settings import algorithm_rows, setting_rows, show_settings
from grouprl.config.algorithm import name_here
from grouprl.config.run import PolicyConfig, RunConfig, dump_config
from grouprl.config.yaml_text import read_yaml
from grouprl.evaluation.evaluate import Evaluation
from grouprl.evaluation.paired import ProblemResults
from grouprl.run.opened import OpenedRun
from grouprl.tasks.named import TASKS
from grouprl.tools.imported.keys import TRL, VERL
from grouprl.trainer.trial import SampledGroup
from grouprl.types import UserError
from recorded_episodes import SCRIPT, episode_group
from small_runs import ROWS, grouprl, small_settings, write_rows


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


def test_a_command_that_computes_nothing_loads_no_torch():
    code = """
import sys
from grouprl.cli import main
for words in (["train", "--help"], ["tasks"]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit:
        print("loaded:", "torch" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert re.findall("^loaded: .*", ended.stdout, re.MULTILINE) == ["loaded: False"] * 2


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
    assert meanings["algorithm.surrogate"].startswith("clip | cispo | plain | sapo | gmpo | vespo: ")
    # A part that an algorithm may be without.
    assert meanings["algorithm.critic_kind"].startswith("none | copy | shared: ")
    assert "|" not in meanings["algorithm.clip_high"]


def test_the_value_of_each_algorithm_is_one_of_the_choices() -> None:
    for name, algorithm in NAMED.items():
        for key, value, meaning in algorithm_rows(algorithm):
            if " | " in meaning:
                assert value in meaning.partition(":")[0].split(" | "), (name, key)


def offered(words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that bash would show after `words`, whose last one may be empty."""
    asked = {"_GROUPRL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with forked(lambda: app(prog_name="grouprl")) as ended:
        assert ended.err.read() == ""
        return ended.out.read().split()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.yaml").write_text("steps: 3\n")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yaml").write_text("steps: 3\n")
    (tmp_path / "runs" / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_bash_gets_the_keys_of_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["rollout.engine.address=", "rollout.engine.addresses="]
    assert offered("grouprl train demo rollout.engine.a", monkeypatch) == keys


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("offers", "typed", "expected"),
    [
        (completion.settings, "algorithm.clip_h", ["algorithm.clip_high="]),
        (completion.settings, "dem", ["demo"]),
        (completion.settings, "mi", ["mine.yaml"]),
        (completion.settings, "nothing", []),
        (completion.keys, "rollout.group", ["rollout.group_size"]),
        (completion.keys, "checkp", ["checkpoint", "checkpoint.every", "checkpoint.keep"]),
        (completion.models, "", ["abacus", "abacus_chains", "abacus_tools", "runs/mine"]),
        (completion.runs, "", ["runs/mine"]),
        (completion.runs, "runs/", ["runs/mine"]),
        (completion.runs, "gone/x", []),
        (completion.tasks, "co", ["code", "countdown"]),
    ],
)
def test_what_fits_is_offered(offers: Callable[[str], list[completion.Offer]], typed: str, expected: list[str]) -> None:
    assert [word for word, _ in offers(typed)] == expected


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


def test_an_invalid_completion_shows_its_reason(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_episode_is_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
