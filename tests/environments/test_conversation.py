"""The loop between the policy's turns and its environment: authored turns in place of a policy, whole small runs."""

import os
import random
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import get_json_schema

from grouprl import Trainer
from grouprl.algorithms import step_advantages
from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.authored import authored_episode
from grouprl.environments.base import Call, Observation, Opening, Verdict
from grouprl.environments.conversation import ToolConversations
from grouprl.environments.shapes import open_games, open_tools
from grouprl.models.prompts import authored_completion, prompt_token_ids
from grouprl.record.read import read_rollouts
from grouprl.rewards.calls import call_keywords
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.outcomes import step_rewards, turn_rewards
from grouprl.rewards.rules import boxed_format
from grouprl.rewards.workers.frames import pack, unpack
from grouprl.rollout import Request
from grouprl.supervised.scratch import new_tokenizer
from grouprl.types import Episode, Group, Problem, StopReason, UserError
from played_episodes import PROBLEM, TOKENIZER, add, called, kept, played, written_by
from small_runs import small_config
from tool_templates import STYLES, tool_tokenizer


def fail(reason: str) -> str:
    """Fails.

    Args:
        reason: Why.
    """
    raise RuntimeError(reason)


class Adder:
    """The same as a class: it counts its calls, and pays for each."""

    def reset(self, start: int = 0, **row: Any) -> None:
        self.start, self.count = start, 0

    def add(self, a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: One number.
            b: The other.
        """
        self.count += 1
        return a + b

    def get_reward(self) -> float:
        return float(self.count)


class Echo:
    """A game that answers three times, and pays the place of its answer."""

    def reset(self) -> str:
        self.turn = 0
        return "It begins."

    def step(self, text: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.turn += 1
        return f"You wrote {text.rpartition('</think>')[2]}", float(self.turn), self.turn == 3, {}


TURNS = [called(("add", {"a": 4, "b": 5})), "It is 9."]


def test_functions_and_a_class_of_the_same_tool_give_the_same_episode():
    ours, problem = played(kept(add), TURNS)
    theirs, other = played(kept(environments=Adder), TURNS)
    assert problem.tools == other.tools
    assert (ours.token_ids, ours.observations) == (theirs.token_ids, theirs.observations)
    assert ours.episode is not None
    assert theirs.episode is not None
    assert ours.episode.messages == theirs.episode.messages
    assert (ours.episode.reward, theirs.episode.reward) == (None, 1.0)
    assert theirs.episode.attributes == {"start": 4, "count": 1}


def test_an_episode_is_the_conversation_that_the_template_writes():
    found, problem = played(kept(add), [called(("add", {"a": 4, "b": 5}), ("add", {"a": -1, "b": 1})), *TURNS])
    messages = [*problem.prompt, *found.episode.messages]  # type: ignore[union-attr]
    whole = TOKENIZER.apply_chat_template(messages, tools=list(problem.tools), return_dict=False)
    ids, begun = list(prompt_token_ids(problem, TOKENIZER, longest=2000)), 0
    for one in found.observations:
        ids += [*found.token_ids[begun : one.after], *one.token_ids]
        begun = one.after
    ids += found.token_ids[begun:]
    assert ids == whole[: len(ids)]
    assert not TOKENIZER.decode(whole[len(ids) :]).strip()
    assert [call.result for call in found.episode.calls] == ["9", "0", "9"]  # type: ignore[union-attr]
    authored = authored_episode(problem, found.episode.messages, TOKENIZER)  # type: ignore[union-attr]
    assert (authored.token_ids, authored.observations) == (found.token_ids, found.observations)


def thought(text: str, style: str, place: int = 0) -> str:
    """A turn with a thought; R1's prompt has begun it."""
    return (
        f"so many words{place}\n</think>{text}"
        if style == "deepseek_r1"
        else f"<think>\nso many words{place}\n</think>{text}"
    )


@pytest.mark.parametrize("style", ["qwen3", "deepseek_r1", "deepseek_v31"])
def test_where_a_template_drops_thoughts_the_policy_reads_the_conversation_without_them(style: str):
    """Before each turn it reads what the template makes of the whole conversation: as when the model is used."""
    tokenizer = tool_tokenizer(STYLES[style])
    script = [thought(text, style, place) for place, text in enumerate(("one", "<｜User｜>", "three"))]
    found, problem = played(open_games(Echo), script, tokenizer=tokenizer)
    assert found.episode is not None
    assert found.episode.forks == 2
    ids, begun, messages = list(prompt_token_ids(problem, tokenizer, longest=2000)), 0, [*problem.prompt]
    for place, one in enumerate(found.observations):
        ids = [*[*ids, *found.token_ids[begun : one.after]][: one.kept], *one.token_ids]
        begun = one.after
        messages += found.episode.messages[2 * place : 2 * place + 2]
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.decode(ids) == tokenizer.decode(whole)
        assert "so many" not in tokenizer.decode(ids)
    # The observation repeats the mark that the policy wrote: in the user's message it is text, not a token.
    mark = tokenizer.convert_tokens_to_ids("<｜User｜>")
    assert ids.count(mark) < whole.count(mark) or mark == tokenizer.unk_token_id
    again = authored_episode(problem, found.episode.transcript, tokenizer)
    if style != "deepseek_r1":  # whose template writes <think> before an authored turn that has one
        assert (again.token_ids, again.observations) == (found.token_ids, found.observations)


def test_where_results_drop_thoughts_the_calls_stay_as_the_policy_wrote_them():
    tokenizer = tool_tokenizer(STYLES["deepseek_v31"])
    found, problem = played(kept(add), TURNS, tokenizer=tokenizer)
    turn = thought(written_by(problem, TURNS[0], tokenizer), "deepseek_v31")  # type: ignore[arg-type]
    forked, _ = played(kept(add), [turn, "It is 9."], tokenizer=tokenizer)
    assert found.episode is not None
    assert forked.episode is not None
    assert (found.episode.forks, forked.episode.forks) == (0, 1)
    prompt = list(prompt_token_ids(problem, tokenizer, longest=2000))
    plain, whole = (
        [
            *[*prompt, *one.token_ids[: one.observations[0].after]][: one.observations[0].kept],
            *one.observations[0].token_ids,
        ]
        for one in (found, forked)
    )
    assert whole == plain


def test_what_rewards_get_of_an_episode():
    found, problem = played(kept(environments=Adder), TURNS)
    keywords = call_keywords([Group(problem, (1,), (found,))])
    assert [message["role"] for message in keywords["completions"][0]] == ["assistant", "tool", "assistant"]
    assert keywords["completion_ids"] == [list(found.token_ids)]
    assert keywords["environment_reward"] == [1.0]
    (held,) = unpack(pack(keywords))["environments"]  # on its way through the run it stays packed
    assert isinstance(held, Adder)
    assert (held.count, held.get_reward()) == (1, 1.0)


WRONG: dict[str, tuple[str | dict[str, Any], str, str]] = {
    "broken JSON": ('<tool_call>\n{"name": "add", "arguments": {"a": 4\n</tool_call>', "format", "JSON"),
    "unknown tool": (called(("multiply", {"a": 4, "b": 5})), "unknown_tool", "multiply"),
    "wrong type": (called(("add", {"a": "four", "b": 5})), "arguments", "a"),
    "missing": (called(("add", {"a": 4})), "arguments", "b"),
    "exception": (called(("fail", {"reason": "no luck"})), "exception", "no luck"),
}


def test_mistakes_are_told_by_default():
    found, _ = played(kept(add, fail), [*(turn for turn, *_ in WRONG.values()), "Well."], turns=9, max_tokens=2000)
    assert found.episode is not None
    for call, (_, fault, said) in zip(found.episode.calls, WRONG.values(), strict=True):
        assert call.fault == fault
        assert said in call.result
    assert (found.episode.ended, found.episode.invalid) == ("finished", "")


def test_a_mistake_can_end_the_episode_or_make_it_invalid():
    turn = WRONG["exception"][0]
    ended, _ = played(kept(add, fail), [turn], mistakes="end")
    invalid, _ = played(kept(add, fail), [turn], mistakes="invalid")
    assert ended.episode is not None
    assert invalid.episode is not None
    assert (ended.episode.ended, ended.episode.invalid) == ("exception", "")
    assert invalid.episode.invalid.startswith("exception: ")
    assert "no luck" in invalid.episode.invalid


@pytest.mark.parametrize(
    ("settings", "count", "made", "ended"),
    # The turn has 69 tokens and its result 50: of 119 nothing is left. A result that nobody reads is not asked for.
    [({"turns": 2}, 2, 1, "turns"), ({"calls": 2}, 3, 2, "calls"), ({"max_tokens": 119}, 1, 1, "tokens")],
    ids=["turns", "calls", "tokens"],
)
def test_limits_end_an_episode(settings: dict[str, int], count: int, made: int, ended: str):
    found, _ = played(kept(add), [TURNS[0]] * count, **settings)
    assert found.episode is not None
    assert (found.episode.ended, len(found.episode.calls)) == (ended, made)
    assert len(found.observations) == count - 1
    assert found.episode.messages[-1]["role"] == "assistant"


def test_the_last_turn_has_what_is_left_of_the_episode():
    found, _ = played(kept(add), [TURNS[0], "9"], max_tokens=119 + 3)
    assert found.episode is not None
    assert (found.episode.ended, len(found.observations)) == ("finished", 1)
    conversations = ToolConversations(kept(add), EnvironmentConfig(max_tokens=119 + 3))
    opened = conversations.opened(PROBLEM)
    with closing(conversations.bind(TOKENIZER, [TOKENIZER.eos_token_id], max_tokens=100)) as talk:
        request = Request(opened, tuple(prompt_token_ids(opened, TOKENIZER, longest=2000)), 1)
        turn = authored_completion(0, written_by(opened, TURNS[0], TOKENIZER), TOKENIZER)
        assert talk.answer(request, [turn], []).result().most == 3


def test_a_turn_longer_than_it_may_be_ends_the_episode():
    conversations = ToolConversations(kept(add), EnvironmentConfig())
    opened = conversations.opened(PROBLEM)
    with closing(conversations.bind(TOKENIZER, [TOKENIZER.eos_token_id], max_tokens=8)) as talk:
        turn = authored_completion(0, "a long story", TOKENIZER, StopReason.LENGTH)
        answer = talk.answer(Request(opened, (1,), 1), [turn], []).result()
    assert answer.episode is not None
    assert answer.episode.ended == "length"


def test_a_game_answers_messages_and_pays_by_turn():
    found, problem = played(open_games(Echo), ["one", "two", "three"])
    assert problem.prompt[-1]["content"] == "What is 4 + 5?\n\nIt begins."  # type: ignore[index]
    assert found.episode is not None
    assert found.episode.turn_rewards == (1.0, 2.0, 3.0)
    assert found.episode.reward == 6.0
    assert [one["content"] for one in found.episode.messages if one["role"] == "user"] == [
        f"You wrote {text}" for text in ("one", "two", "three")
    ]


def test_plain_text_prompts_are_refused():
    with pytest.raises(UserError, match="expected a prompt of chat messages"):
        played(kept(add), TURNS, Problem("p", "What is 4 + 5?"))


class Drawn:
    """It begins in another world each time."""

    def reset(self, prompt: Any = None) -> str:
        assert len(prompt) == 1  # as the task has it, without an opening
        return os.urandom(4).hex()

    def look(self) -> str:
        """Looks."""
        return ""


def test_an_environment_that_begins_differently_each_time_is_refused():
    with pytest.raises(UserError, match="expected `reset` to begin every episode of a problem alike"):
        played(open_tools(environments=Drawn), ["Well."])


# Whole runs


def test_a_template_without_tools_is_refused_before_anything_is_sampled(tiny: Path, tmp_path: Path):
    rows = [{"prompt": [{"role": "user", "content": f"Say {number}."}]} for number in range(4)]
    config = small_config(tmp_path, evaluation={"problems": 0}, environment={"max_tokens": 64})
    trainer = Trainer(model=str(tiny), task=rows, rewards=[letters], config=config, tools=[add])
    with pytest.raises(UserError, match=r"expected one that renders tools, got .*set model.chat_template=tools"):
        trainer.train()
    assert not (tmp_path / "run").exists()


def test_a_run_of_episodes_is_recorded_and_resumes_as_if_it_had_not_stopped(tiny: Path, tmp_path: Path):
    def run(name: str, steps: int, *, resume: bool = False) -> list[dict[str, Any]]:
        config = small_config(
            tmp_path,
            name,
            steps=steps,
            model={"chat_template": "tools"},
            rollout={"problems_per_step": 2, "group_size": 4, "max_tokens": 24},
            environment={"max_tokens": 140, "turns": 3},
            evaluation={"problems": 0},
            checkpoint={"every": 1},
        )
        trainer = Trainer(model=str(tiny), task="guess_number", rewards=[letters], config=config)
        rows = trainer.train(resume=resume).metrics()
        return [{key: row[key] for key in row if not re.search("time|second|rss", key)} for row in rows]

    whole = run("whole", 3)
    run("parts", 1)
    parts = run("parts", 3, resume=True)
    assert parts == whole
    assert max(row["sampler_learner_gap"] for row in whole) < 1e-4
    for step in (2, 3):
        ours, theirs = (read_rollouts(tmp_path / name, step) for name in ("whole", "parts"))
        assert [one.group for one in ours] == [one.group for one in theirs]
    episodes = [one.episode for group in read_rollouts(tmp_path / "whole", 3) for one in group.group.completions]
    assert all(one is not None and one.messages[0]["role"] == "assistant" for one in episodes)
    assert sum(len(one.ends) for one in episodes if one) / 8 == whole[2]["episodes/turns"]


@pytest.mark.parametrize("credit", ["grpo_process", "ppo"])
def test_sampler_and_learner_agree_in_every_form_of_credit(credit: str, tiny: Path, tmp_path: Path):
    """Of turns (a game's rewards), and of tokens (a critic's values); of completions in the run above."""
    config = small_config(
        tmp_path,
        steps=2,
        model={"chat_template": "tools"},
        rollout={"problems_per_step": 2, "group_size": 4, "max_tokens": 24, "stop": ["e"]},
        environment={"max_tokens": 140, "turns": 3},
        evaluation={"problems": 0},
    )
    rows = Trainer(str(tiny), "guess_number", [letters], credit, config).train().metrics()
    assert max(row["sampler_learner_gap"] for row in rows) < 1e-4
    assert max(row["episodes/turns"] for row in rows) > 1
    assert all(row["grad_norm"] > 0 for row in rows)


def letters(completions: list[Any], **columns: Any) -> list[float]:
    return [float(sum(len(str(message["content"])) for message in completion) % 7) for completion in completions]


def test_rewards_read_the_last_turn_whatever_came_after_it():
    """A tool's last result is not what the policy wrote, and steps of its last turn are places in it."""
    found, problem = played(kept(add), [TURNS[0], TURNS[0]], turns=2)
    (messages,) = call_keywords([Group(problem, (1,), (found,))])["completions"]
    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]

    whole, _ = played(kept(add), TURNS)
    reward = WeightedReward("steps", boxed_format, per_step=True)
    ends = [step.end for step in step_rewards(reward, [(len("It is"), 1.0), (len("It is 9."), 0.0)], whole, TOKENIZER)]
    begun = whole.observations[0].after
    said = [TOKENIZER.decode(whole.token_ids[begun : end + 1], skip_special_tokens=True) for end in ends]
    assert [text.strip() for text in said] == ["It is", "It is 9."]


def test_rewards_of_turns_are_credit_for_the_turns_by_hand():
    """Two episodes of two turns and of one: rewards 1, 0 and 0, mean 1/3, deviation sqrt(2)/3, so 1.414 and -0.707."""
    first = Episode((), (), ends=(1, 3), turn_rewards=(1.0, 0.0))
    second = Episode((), (), ends=(2,), turn_rewards=(0.0,))
    steps = [turn_rewards(first), turn_rewards(second)]
    advantages = step_advantages(
        [[one.reward for one in row] for row in steps], [[one.end for one in row] for row in steps], [0, 0], [4, 3]
    )
    above, below = 2**0.5, -(0.5**0.5)
    expected = [[above + below, above + below, below, below], [below, below, below, 0.0]]
    assert advantages.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]


class Opens:
    """A source of environments that say how an episode begins, and nothing else."""

    tools = ()

    def __init__(self, text: str) -> None:
        self._text = text

    def open(self, problem: Problem) -> Any:
        return self

    def reset(self, problem: Problem, seed: int) -> Opening:
        return Opening(self._text)

    def close(self) -> None:
        """Holds nothing."""


@pytest.mark.parametrize("opening", ["Count <|end|><|user|> up.", "<|end|>", "  <|assistant|>x", "<|end|>" + 9 * " "])
def test_the_text_of_an_opening_writes_no_control_token(opening: str) -> None:
    """What the data set's own message has of the template is parsed; what `reset` adds is text."""
    tokenizer = new_tokenizer(["a"], 300)
    for said in ("", "Go. <|user|>"):
        bare = Problem("p", ({"role": "user", "content": said},))
        problem = ToolConversations(Opens(opening), EnvironmentConfig()).opened(bare)
        ids = prompt_token_ids(problem, tokenizer, longest=1000)
        plain = prompt_token_ids(Problem("p", ({"role": "user", "content": f"{said}\n\nx"},)), tokenizer, longest=1000)
        marks = set(tokenizer.convert_tokens_to_ids(["<|end|>", "<|user|>", "<|assistant|>"]))
        assert [one for one in ids if one in marks] == [one for one in plain if one in marks]
        assert opening.strip() in str(tokenizer.decode(ids))


class Draws(Opens):
    """Its world is what it draws with the seed that it gets."""

    def reset(self, problem: Problem, seed: int) -> Opening:
        return Opening(str(random.Random(seed).random()))


def test_the_worlds_of_problems_differ_and_a_problem_keeps_its_own() -> None:
    worlds = [
        ToolConversations(Draws(""), EnvironmentConfig())
        .opened(Problem(name, ({"role": "user", "content": ""},)))
        .prompt
        for name in ("a", "b", "a")
    ]
    assert worlds[0] == worlds[2] != worlds[1]


class Pays(Opens):
    """Each call of a turn pays 1 more than the one before it; the second ends the episode."""

    tools = (get_json_schema(add),)

    def call(self, calls: list[Call]) -> list[Observation]:
        return [Observation("paid", reward=float(n), done=n == 2) for n, _ in enumerate(calls, 1)]

    def verdict(self) -> Verdict:
        return Verdict()


def test_the_rewards_of_the_calls_of_a_turn_add_up() -> None:
    twice = called(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
    found, _ = played(Pays(""), [called(("add", {"a": 1, "b": 2})), twice])
    assert found.episode is not None
    assert (found.episode.turn_rewards, found.episode.ended) == ((1.0, 3.0), "finished")
