"""`grouprl replay --branch`: the effects of single tokens on the reward of a recorded run, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from grouprl import UserError
from grouprl.config.run import RunConfig, load_config
from grouprl.lab.report.tokens import one_completion
from grouprl.models.load import load_tokenizer
from grouprl.record.branches import BranchedCompletion, read_branches
from grouprl.record.read import read_rollouts
from grouprl.tools.proof.branches import Selection, branch
from small_runs import grouprl, small_settings, write_rows

REWARDS = """import random
def letters(completions, **columns):
    return [sum(c in "abcdefghijklmnopqrstuvwxyz" for c in text) / max(1, len(text)) for text in completions]
def rarely(completions, **columns):
    return [float(sum(map(ord, text)) % 9 == 0) for text in completions]
def by_chance(completions, **columns):
    return [random.random() for _ in completions]
"""


def letters(text: str) -> float:
    return len(re.findall("[a-z]", text)) / max(1, len(text))


def made(tiny: Path, folder: Path, reward: str, *settings: str) -> Path:
    rows = write_rows(folder / "rows.jsonl", [{"prompt": f"Say {number}.", "answer": "a"} for number in range(30)])
    (folder / "mine.py").write_text(REWARDS)
    checkpoint, evaluation = {"every": 2, "keep": 2}, {"problems": 1, "samples": 0}
    given = small_settings(folder / "runs", name="run", checkpoint=checkpoint, evaluation=evaluation)
    task = (
        "task.name=jsonl",
        f"task.path={rows}",
        "model.chat_template=plain",
        f"model.path={tiny}",
        "learner.learning_rate=0.001",
        "steps=3",
    )
    ended = grouprl("train", *given, *task, "--reward", f"{folder / 'mine.py'}:{reward}", *settings)
    assert ended.code == 0, ended.text
    return folder / "runs" / "run"


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, with a checkpoint of step 2."""
    return made(tiny, tmp_path_factory.mktemp("branched"), "letters")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """Of which a test changes something."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def branched(run: Path, step: int, selection: Selection = Selection(), *changes: str) -> BranchedCompletion:  # noqa: B008
    return branch(run, step, load_config(RunConfig, [run / "config.yaml"], changes), selection)


def test_an_effect_is_the_reward_of_the_branch_less_the_recorded_one(run: Path, tiny: Path) -> None:
    ended: list[tuple[int, int]] = []
    config, asked = load_config(RunConfig, [run / "config.yaml"], []), Selection(completion=2, tokens=3, alternatives=2)
    found = branch(run, 3, config, asked, sampled=lambda *numbers: ended.append(numbers))
    own = read_rollouts(run, 3)[found.group].group.completions[2]
    assert found.token_ids == own.token_ids
    assert found.reward == pytest.approx(letters(own.text))
    assert len(found.tokens) == 3
    assert sum(done for done, _ in ended) == ended[0][1] == 1 + sum(len(token.branches) for token in found.tokens)
    tokenizer = load_tokenizer(str(tiny))
    for token in found.tokens:
        assert token.token_id == own.token_ids[token.position]
        before = tokenizer.decode(own.token_ids[: token.position], skip_special_tokens=True)
        rewards = [letters(before + one.text) for one in token.branches]
        assert [one.reward for one in token.branches] == pytest.approx(rewards)
        chances = [one.probability for one in token.branches]
        assert chances == sorted(chances, reverse=True)
        changes = [reward - letters(own.text) for reward in rewards]
        mean = sum(p * c for p, c in zip(chances, changes, strict=True)) / sum(chances)
        effect = found.effect(token)
        assert effect is not None
        assert [effect.mean, effect.low, effect.high] == pytest.approx([mean, min(changes), max(changes)])


@pytest.mark.parametrize(
    ("reward", "settings"),
    [
        ("letters", ["rollout.temperature=0.7", "rollout.top_p=0.9", "rollout.curriculum.order=edge"]),
        ("rarely", ["algorithm=dapo"]),
    ],
)
def test_every_recorded_group_is_met_again(tiny: Path, tmp_path: Path, reward: str, settings: Sequence[str]) -> None:
    """Those that replaced dropped ones too: `branch` refuses a completion that does not come out as it was recorded."""
    run = made(tiny, tmp_path, reward, *settings)
    groups = read_rollouts(run, 3)
    for place, one in enumerate(groups):
        found = branched(run, 3, Selection(one.group.problem.id, 1, tokens=1, alternatives=1))
        assert found.group == place
    assert len(groups) > 2 or "algorithm=dapo" not in settings


def test_the_command_shows_and_records_what_the_page_reads(copy: Path) -> None:
    ended = grouprl("replay", copy, 2, "--branch", "--tokens", 2, "--least", 0.02)
    assert ended.code == 0, ended.text
    assert "At most 2 positions with the largest entropy (--tokens)" in ended.text
    shown = re.search(r"Tokens computed: ([0-9,]+), without reuse ([0-9,]+)", ended.text)
    assert shown is not None
    computed, without = (int(number.replace(",", "")) for number in shown.groups())
    assert computed < without
    (path,) = (copy / "token_branches").iterdir()
    written = json.loads(path.read_text())
    own = read_rollouts(copy, 2)[written["group"]].group.completions[0]
    found = read_branches(copy, 2, written["group"], 0, own.token_ids)
    assert found is not None
    assert (found.tokens_computed, found.tokens_without_prefix) == (computed, without)
    answer = one_completion(copy, 2, written["group"], 0, root=copy.parent)
    for token, row in zip(found.tokens, written["tokens"], strict=True):
        assert answer["effects"][token.position] == found.effect(token).mean == row["effect"]["mean"]  # type: ignore[union-attr]
        assert [one["text"] for one in answer["branches"][token.position]] == [one.text for one in token.branches]
    assert sum(effect is not None for effect in answer["effects"]) == len(found.tokens) == 2
    assert read_branches(copy, 2, written["group"], 0, own.token_ids[:-1]) is None  # as after a resume with other luck
    first = written["tokens"][0]
    for change in ({"position": -1}, {"position": 1.0}, {"branches": [{"reward": 1.0}]}, {"branches": 7}):
        path.write_text(json.dumps({**written, "tokens": [{**first, **change}]}))
        with pytest.raises(UserError, match="expected the branches of a completion"):
            one_completion(copy, 2, written["group"], 0, root=copy.parent)


@pytest.mark.parametrize(
    ("selection", "changes", "what"),
    [
        (Selection(problem="rows/nothing"), (), "--problem: "),
        (Selection(completion=4), (), "expected --completion below 4, got 4"),
        (Selection(positions=(8,)), (), r"expected --position of 0 to \d, .* got 8"),
        (Selection(least=1.0), (), "expected another token with a probability of at least 1"),
        (Selection(), ("rollout.engine.name=vllm",), "engine.name=native, got"),
        (Selection(), ("seed=3",), "expected the problem"),
        (Selection(positions=(0,)), ("rollout.top_k=2",), "expected the completion again where no token is changed"),
    ],
)
def test_what_has_no_branches_is_refused(run: Path, selection: Selection, changes: Sequence[str], what: str) -> None:
    with pytest.raises(UserError, match=what):
        branched(run, 2, selection, *changes)


def test_what_the_record_lacks_or_changed_is_refused(copy: Path, tiny: Path) -> None:
    with pytest.raises(UserError, match="expected the completions of step 7"):
        branched(copy, 7)
    assert "own options only with it" in grouprl("replay", copy, 2, "--tokens", 3).text
    with closing(sqlite3.connect(copy / "rollouts.sqlite")) as database, database:
        database.execute("UPDATE completions SET weights_version = 0 WHERE step = 2")
    with pytest.raises(UserError, match="expected a completion of the weights before step 2, after 1 updates, got one"):
        branched(copy, 2)
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace(str(tiny), f"{tiny} that is gone"))
    with pytest.raises(UserError, match="that is gone"):
        branched(copy, 2)


def test_an_episode_is_refused(copy: Path) -> None:
    episode = {"observations": [], "messages": [], "calls": [], "ends": [7]}
    with closing(sqlite3.connect(copy / "rollouts.sqlite")) as database, database:
        database.execute(
            "INSERT INTO episodes SELECT step, group_index, completion_index, ? FROM completions WHERE step = 2",
            (json.dumps(episode),),
        )
    with pytest.raises(UserError, match="expected a completion of one turn, got an episode"):
        branched(copy, 2)


def test_a_reward_by_chance_has_no_effects(tiny: Path, tmp_path: Path) -> None:
    run = made(tiny, tmp_path, "by_chance", "steps=1")
    with pytest.raises(UserError, match="it depends on more than the completion"):
        branched(run, 1)
