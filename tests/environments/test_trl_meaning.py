"""Environments mean what they mean in TRL: prompts, rewards and advantages, by hand and by TRL 1.16's own trainer."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import trl_shapes
from grouprl import Trainer
from grouprl.algorithms.named import NAMED
from grouprl.config.run import RunConfig
from grouprl.environments.base import Call
from grouprl.environments.formats import ToolFormat
from grouprl.learner.batch import component
from grouprl.models.names import BUNDLED
from grouprl.models.prompts import authored_completion
from grouprl.rollout.episodes import joined
from grouprl.rollout.native import NativeEngine
from grouprl.types import Completion, Group, Message, ObservedTokens, Problem, UserError
from trl_shapes import Begins, Counter, Never, Plain, Sparse, add, counted, is_counter, length, starts, twice, words

GROUP = 4
Script = Callable[[Mapping[str, Any], int], tuple[str, Mapping[str, Any]] | None]
"""The tool and the arguments that completion j of a problem with these columns calls first; None = it calls none."""


@dataclass(frozen=True)
class Scored:
    """The completions of a problem, as they enter the loss."""

    prompt: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    components: list[dict[str, float | None]]
    rewards: list[float | None]  # None = invalid
    advantages: list[float]
    reasons: list[str]


class _SampledError(Exception):
    """The groups of the first step are there."""


def said(index: int) -> str:
    """The last turn of a completion."""
    return "so " * index + "done"


def scripted(runs: Path, script: Script, **given: Any) -> list[Scored]:
    """What a `Trainer` makes of scripted completions, in the order of the column `start`."""
    found: list[Any] = []

    def generate(engine: Any, requests: Sequence[Any], sampling: Any, *, on_group: Any = None, **_: Any) -> list[Group]:
        groups = []
        for place, request in enumerate(requests):
            made = tuple(_played(engine, request, index, script) for index in range(request.completions))
            groups.append(Group(request.problem, request.prompt_ids, made))
            if on_group is not None:
                on_group(place, groups[-1])
        return groups

    def stop(learner: Any, scored: Any, clock: Any) -> None:
        found.append(scored)
        raise _SampledError

    settings: dict[str, Any] = {
        "name": "r",
        "runs_dir": str(runs),
        "steps": 1,
        "model": {"threads": 1},
        "rollout": {"problems_per_step": 2, "group_size": GROUP, "max_tokens": 64, "scoring": {"max_invalid": 1.0}},
        "evaluation": {"problems": 0},
    }
    config = RunConfig(**settings | given.pop("config", {}))
    with (
        suppress(_SampledError),
        patch.object(NativeEngine, "generate", generate),
        patch("grouprl.step.update_policy", stop),
        patch("grouprl.run.assemble.check_sampler", lambda *_, **__: None),
    ):
        Trainer(given.pop("model", "abacus_tools"), config=config, algorithm="trl", **given).train()
    (scored,) = found
    rows = [_scored(*pair, scored.weights) for pair in zip(scored.groups, scored.outcomes, strict=True)]
    order = sorted(range(len(rows)), key=lambda place: scored.groups[place].problem.columns.get("start", 0))
    return [rows[place] for place in order]


def _played(engine: Any, request: Any, index: int, script: Script) -> Completion:
    problem: Problem = request.problem
    call = script(problem.columns, index)
    form = ToolFormat.of(engine._tokenizer, problem.tools) if problem.tools else None
    texts = [] if call is None or form is None else [form.written("", [Call(*call)])]
    turns: list[Completion] = []
    observations: list[ObservedTokens] = []
    while True:
        text = texts.pop(0) if texts else said(index)
        turns.append(authored_completion(index, text, engine._tokenizer))
        if engine._conversation is None:
            return turns[0]
        answer = engine._conversation.answer(request, turns, observations).result()
        if answer.episode is not None:
            return joined(turns, observations, answer.episode)
        observations.append(ObservedTokens(sum(map(len, turns)), answer.token_ids, answer.kept))


def _scored(group: Group, outcomes: Sequence[Any], weights: Mapping[str, float]) -> Scored:
    totals_G = torch.tensor([one.total for one in outcomes], dtype=torch.float64)
    components = {name: component(outcomes, name) for name in weights}
    advantage: Any = NAMED["trl"].advantage
    advantages_G = advantage.compare(totals_G, components, weights, torch.zeros(len(outcomes), dtype=torch.long))
    return Scored(
        tuple(group.problem.prompt),  # type: ignore[arg-type]
        group.prompt_ids,
        [dict(one.components) for one in outcomes],
        [one.total if one.valid else None for one in outcomes],
        advantages_G.tolist(),
        [one.reason for one in outcomes],
    )


# Rows of both trainers

FILE, KEYS = trl_shapes.__file__, ("name", "arguments")


def prompts(content: str, **columns: Any) -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": content}], "start": n, **columns} for n in range(2)]


def of(*names: str, **columns: Any) -> list[dict[str, Any]]:
    return [{"environment": name, "start": n, **columns} for n, name in enumerate(names)]


FULL, EMPTY, BARE = prompts("Go on. "), prompts(""), [{"start": n} for n in range(2)]
ANSWERED = prompts("Go on. ", answer="7")
BOTH = {"counter": Counter, "plain": Plain}
MIXED = {"counter": Counter, "sparse": Sparse}
TWICE = {"one": Counter, "two": Counter}
Row = Mapping[str, Any]
# Ours, and where TRL has no such form the same in its form. Every row has two problems of four completions.
ROWS: dict[str, tuple[Row, Row]] = {
    name: (row, row)
    for name, row in {
        "factory, get_reward": {"environment_factory": Counter},
        "factory, own": {"environment_factory": Plain, "rewards": [words]},
        "factory, own and get_reward": {"environment_factory": Counter, "rewards": [words]},
        "factory, none": {"environment_factory": Plain},
        "factory, objects": {"environment_factory": Counter, "rewards": [is_counter]},
        "factory, data, get_reward": {"environment_factory": Counter, "task": FULL},
        "factory, data, own": {"environment_factory": Plain, "task": FULL, "rewards": [words]},
        "factory, data, own and get_reward": {"environment_factory": Counter, "task": FULL, "rewards": [starts]},
        "factory, data, several": {"environment_factory": Counter, "task": FULL, "rewards": [words, is_counter]},
        "factory, data, none": {"environment_factory": Plain, "task": FULL},
        "factory, data, objects": {"environment_factory": Plain, "task": FULL, "rewards": [counted]},
        "factory, data, sparse": {"environment_factory": Sparse, "task": FULL},
        "factory, data, sparse and own": {"environment_factory": Sparse, "task": FULL, "rewards": [words]},
        "factory, data, never": {"environment_factory": Never, "task": FULL},
        "factory, data, answers": {"environment_factory": Counter, "task": ANSWERED},
        "factory, data, empty": {"environment_factory": Counter, "task": EMPTY},
        "factory, data, empty, own": {"environment_factory": Counter, "task": EMPTY, "rewards": [words]},
        "factory, data, no prompt": {"environment_factory": Counter, "task": BARE},
        "factory, data, no prompt, own": {"environment_factory": Plain, "task": BARE, "rewards": [starts]},
        "factory, data, column": {"environment_factory": Counter, "task": prompts("Go. ", environment="x")},
        "factory, tools": {"environment_factory": Plain, "task": FULL, "tools": [twice], "rewards": [words]},
        "several, no data": {"environment_factory": BOTH, "rewards": [words]},
        "several, column": {"environment_factory": BOTH, "task": of("counter", "plain"), "rewards": [words]},
        "several, column, get_reward": {"environment_factory": MIXED, "task": of("counter", "sparse")},
        "several, column, objects": {
            "environment_factory": MIXED,
            "task": of("counter", "sparse"),
            "rewards": [is_counter, counted],
        },
        "several, column, twice": {"environment_factory": TWICE, "task": of("one", "two"), "rewards": [words]},
        "several, column and prompt": {
            "environment_factory": BOTH,
            "task": of("counter", "plain", prompt=[{"role": "user", "content": "Go. "}]),
            "rewards": [words],
        },
        "several, unknown": {"environment_factory": BOTH, "task": of("counter", "other"), "rewards": [words]},
        "tools, data, own": {"tools": [add], "task": FULL, "rewards": [words]},
        "tools, data, several": {"tools": [add], "task": FULL, "rewards": [words, starts]},
        "tools, data, none": {"tools": [add], "task": FULL},
        "tools, data, objects": {"tools": [add], "task": FULL, "rewards": [is_counter]},
        "data, own": {"task": FULL, "rewards": [words]},
    }.items()
}


def elsewhere(**environment: str) -> dict[str, Any]:
    return {"config": {"environment": environment}}


def in_trls_form(task: Any = None, rewards: Any = ()) -> Row:
    """What a game or an agent is there: its first message, and its reward as one more function."""
    return {"environment_factory": Begins, "rewards": [*rewards, length]} | ({"task": task} if task else {})


GAME, AGENT = elsewhere(game=f"{FILE}:Game"), elsewhere(agent=f"{FILE}:agent")
for kind, form in (("game", GAME), ("agent", AGENT)):
    ROWS |= {
        f"{kind}, get_reward": (form, in_trls_form()),
        f"{kind}, own and get_reward": ({**form, "rewards": [words]}, in_trls_form(rewards=[words])),
        f"{kind}, data, get_reward": ({**form, "task": EMPTY}, in_trls_form(EMPTY)),
        f"{kind}, data, own and get_reward": (
            {**form, "task": EMPTY, "rewards": [words, starts]},
            in_trls_form(EMPTY, [words, starts]),
        ),
        f"{kind}, data, no prompt": ({**form, "task": BARE, "rewards": [starts]}, in_trls_form(BARE, [starts])),
    }


def script(columns: Row, index: int) -> tuple[str, dict[str, int]] | None:
    """Completion j calls add(j), but for the first, which calls nothing."""
    return ("add", {"a": index}) if index else None


def ours(runs: Path, row: Row) -> list[Scored]:
    return scripted(runs, script, **row)


# Rewards of the completions 0 to 3 of two problems, by hand: completion j says j + 1 words, has 4 + 3 j characters, and
# adds j to the start of its problem, which is n where there are data, else 0.
BY_HAND: dict[str, tuple[list[str], list[list[float | None]]]] = {
    "factory, own and get_reward": (["Count from 0."] * 2, [[1, 4, 7, 10]] * 2),
    "factory, data, objects": (["Go on. "] * 2, [[2, 3, 3, 3]] * 2),
    "factory, data, answers": (["Go on. Count from 0.", "Go on. Count from 1."], [[0, 2, 4, 6], [2, 4, 6, 8]]),
    "factory, data, no prompt": (["Count from 0.", "Count from 1."], [[0, 2, 4, 6], [2, 4, 6, 8]]),
    "several, column, get_reward": (["Count from 0.", ""], [[0, 2, 4, 6], [None, 0.5, 0.5, 0.5]]),
    "tools, data, several": (["Go on. "] * 2, [[1, 2, 3, 4], [2, 3, 4, 5]]),
    "game, own and get_reward": (["It begins."] * 2, [[5, 9, 13, 17]] * 2),
    "agent, get_reward": (["It begins."] * 2, [[4, 7, 10, 13]] * 2),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_prompts_and_rewards_by_hand(name: str, tmp_path: Path) -> None:
    contents, rewards = BY_HAND[name]
    found = ours(tmp_path, ROWS[name][0])
    assert [one.prompt[-1]["content"] for one in found] == contents
    assert [one.rewards for one in found] == rewards
    # (r - mean) / (sample deviation + 1e-4): -3, -1, 1, 3 over 2.582 where the rewards are 2 apart.
    if rewards[0] == [0, 2, 4, 6]:
        assert found[0].advantages == pytest.approx([-1.16185, -0.38728, 0.38728, 1.16185], abs=1e-5)
    if rewards[-1][0] is None:
        assert found[-1].advantages == [0.0] * GROUP


# How the model writes calls; TRL knows templates by their text.
RESPONSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def theirs(row: Row) -> list[Scored]:
    """The same rows in TRL's trainer, whose completions are the same tokens; the rest is its own."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = str(BUNDLED["abacus_tools"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.response_template = RESPONSES
    trainer: Any = GRPOTrainer(
        model=folder,
        reward_funcs=list(row.get("rewards", ())) or None,
        args=GRPOConfig(
            "unused",
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=2 * GROUP,
            num_generations=GROUP,
            max_completion_length=400,
            max_steps=1,
            report_to="none",
        ),
        train_dataset=Dataset.from_list(row["task"]) if "task" in row else None,
        processing_class=tokenizer,
        tools=list(row.get("tools", ())) or None,
        environment_factory=row.get("environment_factory"),
    )
    first: list[list[int]] = []  # what was read and written in the first turn of each completion
    prompt_ids: list[list[int]] = []

    def sampled(read: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        turns = []
        for place, ids in enumerate(read):
            again = [at % GROUP for at, begun in enumerate(first) if ids[: len(begun)] == begun]
            index = again[0] if again else place % GROUP
            call = None if again else script({}, index)
            calls = trainer.tools and call is not None
            text = (
                f"<tool_call>\n{json.dumps(dict(zip(KEYS, call, strict=True)))}\n</tool_call>" if calls else said(index)
            )
            turns.append([*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
        if not first:
            prompt_ids.extend(read)
            first.extend([*ids, *turn] for ids, turn in zip(read, turns, strict=True))
        return turns, None

    trainer._generate_single_turn = sampled
    trainer.model.train()
    inputs = [problem for problem in trainer.train_dataset for _ in range(GROUP)]
    advantages = trainer._generate_and_score_completions(inputs)["advantages"].tolist()
    logs = trainer._logs
    columns = [list(values) for values in logs["rewards"].values()]
    totals = [_total([column[place] for column in columns]) for place in range(2 * GROUP)]
    return [
        Scored(tuple(logs["prompt"][at]), tuple(prompt_ids[at]), [], totals[part], advantages[part], [])
        for at in (0, GROUP)
        if (part := slice(at, at + GROUP))
    ]


def _total(values: list[float]) -> float | None:
    applied = [value for value in values if not math.isnan(value)]
    return sum(applied) if applied else None


def has_trl() -> bool:
    try:
        return version("trl") == "1.16.0"
    except PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not has_trl(), reason="needs trl 1.16.0, of the extra bench")
@pytest.mark.parametrize("name", ROWS)
def test_trl_makes_the_same_of_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    our_row, their_row = ROWS[name]
    try:
        expected = theirs(their_row)
    except (ValueError, TypeError) as error:  # no reward, no data, an unknown environment, no objects
        refused = str(error)
        with pytest.raises(UserError) as raised:
            ours(tmp_path, our_row)
        assert len(refused) > 0
        assert name in REFUSED, (refused, str(raised.value))
        return
    assert name not in REFUSED
    for found, same in zip(ours(tmp_path, our_row), expected, strict=True):
        assert [dict(one) for one in found.prompt] == [dict(one) for one in same.prompt]
        assert found.prompt_ids == same.prompt_ids
        assert found.rewards == same.rewards
        assert found.advantages == pytest.approx(same.advantages, abs=1e-5)  # they compute in float32


REFUSED = {
    "factory, none", "factory, data, none", "several, no data", "several, unknown", "tools, data, none",
    "tools, data, objects",
}  # fmt: skip


OF_A_FILE = '''
from threading import Lock

class Mark:
    value = 7

class World:
    def __init__(self):
        self.lock, self.marks = Lock(), [Mark()]

    def reset(self, **row): ...

    def add(self, a: int) -> int:
        """Adds.

        Args:
            a: A number.
        """
        self.marks.append(Mark())
        return a

    def get_reward(self):
        self.marks.clear()
        return REWARD

def same_file(environments, **columns):
    return [float(isinstance(one, World) and isinstance(one.marks[0], Mark)) for one in environments]
'''
READERS = """
from world import World

def imported(environments, **columns):
    return [float(type(one) is World) for one in environments]

def locked(environments, **columns):
    return [float(one.lock is None) + bool(one.lock) for one in environments]
"""
ANYWHERE = """
def marks(environments, **columns):
    return [float(sum(mark.value for mark in one.marks)) for one in environments]
"""


def of_files(folder: Path, *rewards: str, reward: str = "0.0") -> list[Scored]:
    for name, text in (("world", OF_A_FILE), ("readers", READERS), ("anywhere", ANYWHERE)):
        (folder / f"{name}.py").write_text(text.replace("REWARD", reward))
    named = [dict(zip(("path", "name"), reward.split(":"), strict=True)) for reward in rewards]
    config = {
        "environment": {"factory": str(folder / "world.py:World")},
        "rewards": [{**one, "path": str(folder / one["path"])} for one in named],
    }
    return scripted(folder, script, config=config)


def test_an_object_of_a_file_is_the_same_class_in_every_file_and_what_cannot_be_sent_is_an_error(
    tmp_path: Path,
) -> None:
    rewards = "world.py:same_file", "readers.py:imported", "anywhere.py:marks", "readers.py:locked"
    found, _ = of_files(tmp_path, *rewards)
    assert [one["same_file"] for one in found.components] == [1.0] * GROUP
    assert [one["imported"] for one in found.components] == [1.0] * GROUP
    assert [one["marks"] for one in found.components] == [7.0, 14.0, 14.0, 14.0]  # before get_reward clears them
    assert [one["environment"] for one in found.components] == [0.0] * GROUP
    assert found.rewards == [None] * GROUP
    assert all("locked raised TypeError: World.lock cannot be sent to a reward: " in one for one in found.reasons)


def test_a_reward_that_fails_makes_the_episode_invalid(tmp_path: Path) -> None:
    found, _ = of_files(tmp_path, "anywhere.py:marks", reward="1 / 0")
    assert found.rewards == [None] * GROUP
    assert all(one.startswith("the environment's reward: ") and "ZeroDivision" in one for one in found.reasons)


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no environment": (
        {"task": FULL, "rewards": ["environment"]},
        "reward environment: expected an environment that gives a reward, got none",
    ),
    "no get_reward": (
        {"task": FULL, "rewards": ["environment"], "environment_factory": Plain},
        "expected an environment that gives a reward, got one without `get_reward`",
    ),
    "no reward": ({"environment_factory": Plain}, "rewards: expected at least one, but the task environment has no"),
    "no objects": (
        {"task": FULL, "tools": [add], "rewards": [is_counter]},
        "reward is_counter: expected the objects of environments for its parameter `environments`, got a run without",
    ),
    "no methods": ({"environment_factory": Begins}, "environment Begins: expected public methods"),
    "epochs": (
        {"environment_factory": Counter, "config": {"task": {"name": "environment"}, "epochs": 2.0}},
        "epochs: expected steps where the environment owns the data",
    ),
    "no world": ({"task": "environment"}, "task.name: expected an environment with environment, got none"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_gives_no_reward_is_refused_before_sampling(name: str, tmp_path: Path) -> None:
    row, said = REFUSALS[name]
    with pytest.raises(UserError) as raised:
        ours(tmp_path, row)
    assert said in str(raised.value)
