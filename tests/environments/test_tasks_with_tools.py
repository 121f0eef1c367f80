"""The built-in tasks with tools: what they give to imitate is what their tools answer, and it is right."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from grouprl.checks.sandbox import BACKENDS, why_unavailable
from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.base import Call
from grouprl.environments.shapes import source_of
from grouprl.rewards.rules import correct_answer
from grouprl.tasks import load_task

SANDBOXED = not all(map(why_unavailable, BACKENDS))


def answers(source: Any, worked: Sequence[dict[str, Any]], problem: Any) -> list[str]:
    """What the task's tools answer to the calls of a conversation."""
    environment = source.open(problem)
    environment.reset(problem, 0)
    calls = [one["function"] for message in worked for one in message.get("tool_calls", ())]
    found = [environment.call([Call(one["name"], one["arguments"])])[0] for one in calls]
    environment.close()
    assert [one.fault for one in found] == [None] * len(found)
    return [one.text for one in found]


@pytest.mark.parametrize("name", ["calculator", "search_notes", "python_repl"])
def test_a_worked_conversation_is_what_the_tools_answer(name: str):
    if name == "python_repl" and not SANDBOXED:
        pytest.skip("no sandbox works here")
    task: Any = load_task(name)
    with closing(source_of(EnvironmentConfig(), task)) as source:
        for problem in task.problems("train")[:3]:
            worked = task.worked(problem)
            shown = [message["content"] for message in worked if message["role"] == "tool"]
            assert answers(source, worked, problem) == shown
            (right,) = correct_answer(["?"], [worked], [[]], answer=[problem.columns["answer"]])
            assert right == 1.0


def test_halving_the_range_earns_everything_and_each_further_guess_less():
    task = load_task("guess_number")
    problem = task.problems("train")[0]
    lowest, highest = (int(one) for one in problem.prompt[0]["content"].split("from ")[1].split(".")[0].split(" to "))  # type: ignore[index]
    with closing(source_of(EnvironmentConfig(), task)) as source:
        halving, counting = source.open(problem), source.open(problem)
        for game in (halving, counting):
            game.reset(problem, 0)
        while (said := halving.reply(f"Is it {(guess := (lowest + highest) // 2)}?")) and not said.done:
            lowest, highest = (guess + 1, highest) if said.text == "Higher." else (lowest, guess - 1)
        assert said is not None
        assert (said.text, halving.verdict().reward) == ("Right.", 1.0)
        for _ in range(9):
            counting.reply("I do not know")
        counting.reply(str(problem.columns["number"]))
        assert counting.verdict().reward == 1 / 7  # ten guesses, of which four are enough for 15 numbers
