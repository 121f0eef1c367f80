"""Agents that own their loop: what they ask over HTTP, the policy reads and writes."""

import asyncio
import json
import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grouprl import Trainer
from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.shapes import open_agents
from grouprl.models.prompts import prompt_token_ids
from grouprl.record.read import read_rollouts
from grouprl.types import UserError
from played_episodes import TOKENIZER, add, called, kept, played
from small_runs import small_config
from tool_templates import STYLES, tool_tokenizer

TURNS = [called(("add", {"a": 4, "b": 5}), ("add", {"a": 1, "b": 2})), "It is 9."]
SCHEMA = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "One number."},
                "b": {"type": "integer", "description": "The other."},
            },
            "required": ["a", "b"],
        },
        "return": {"type": "integer"},
    },
}


FUSSY = tool_tokenizer(STYLES["qwen2"])
FUSSY.chat_template = "{% for tool in tools or [] %}{{ tool.function.parameters.type + '' }}{% endfor %}" + str(
    FUSSY.chat_template
)


def ask(
    messages: list[dict[str, Any]], *, token: str | None = None, path: str = "/chat/completions", **body: Any
) -> Any:
    """One request, by the standard library alone."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + path,
        json.dumps({"model": "any", "messages": messages, **body}).encode(),
        {"Authorization": f"Bearer {token or os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        text = reply.read().decode()
    return text if body.get("stream") else json.loads(text)


def begun(prompt: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [dict(message) for message in prompt]


def with_tools(prompt: list[dict[str, str]], start: int) -> float:
    """A loop as of any agent: it makes the calls itself, and pays for what was said in the end."""
    messages = begun(prompt)
    while True:
        choice = ask(messages, tools=[SCHEMA])["choices"][0]
        messages.append(choice["message"])
        if choice["finish_reason"] != "tool_calls":
            return float("9" in choice["message"]["content"]) + start
        for made in choice["message"]["tool_calls"]:
            result = add(**json.loads(made["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": str(result)})


def test_an_agent_with_its_own_tools_is_the_episode_of_the_same_tools():
    ours, problem = played(open_agents(with_tools), TURNS)
    theirs, other = played(kept(add), TURNS)
    assert (problem.prompt, problem.tools) == (other.prompt, other.tools)
    assert (ours.token_ids, ours.observations) == (theirs.token_ids, theirs.observations)
    assert ours.episode is not None
    assert theirs.episode is not None
    assert (ours.episode.reward, ours.episode.ended, ours.episode.forks) == (1.0 + 4, "finished", 0)
    assert [(one.tool, one.arguments, one.result) for one in ours.episode.calls] == [
        (one.tool, one.arguments, one.result) for one in theirs.episode.calls
    ]


async def forgets(prompt: list[dict[str, str]]) -> None:
    """It talks twice, and then begins again with a summary."""
    first = ask(begun(prompt))["choices"][0]["message"]
    ask([*begun(prompt), first, {"role": "user", "content": [{"type": "text", "text": "Sure?"}]}])
    await asyncio.sleep(0)
    ask([{"role": "system", "content": "Be <|im_end|> brief."}, {"role": "user", "content": "You said 9. Sure?"}])


def test_an_agent_that_changes_its_history_forks_the_episode():
    found, problem = played(open_agents(forgets), ["It is 9.", "Yes.", "Yes!"])
    assert found.episode is not None
    assert [one.kept is None for one in found.observations] == [True, False]
    assert (found.episode.reward, found.episode.ended) == (None, "finished")
    first, second = found.observations
    read = [*prompt_token_ids(problem, TOKENIZER, longest=2000), *found.token_ids[: first.after], *first.token_ids]
    read = [*[*read, *found.token_ids[first.after : second.after]][: second.kept], *second.token_ids]
    said = [{"role": "system", "content": "Be <|im_end|> brief."}, {"role": "user", "content": "You said 9. Sure?"}]
    whole = TOKENIZER.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    assert TOKENIZER.decode(read) == whole
    assert read.count(TOKENIZER.eos_token_id) == 2  # the mark in the agent's text is text


def watched(prompt: list[dict[str, str]]) -> str:
    answer = ask(begun(prompt), logprobs=True)
    choice, length = answer["choices"][0], len(answer["choices"][0]["token_ids"])
    assert answer["usage"] == {
        "prompt_tokens": len(answer["prompt_token_ids"]),
        "completion_tokens": length,
        "total_tokens": len(answer["prompt_token_ids"]) + length,
    }
    assert len(choice["logprobs"]["content"]) == length
    streamed = ask([*begun(prompt), choice["message"], {"role": "user", "content": "Sure?"}], stream=True)
    first, last = streamed.strip().split("\n\n")
    delta = json.loads(first.removeprefix("data: "))["choices"][0]["delta"]
    assert (delta["content"], last) == ("Yes.", "data: [DONE]")
    models = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/models", headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    )
    return str(json.load(urllib.request.urlopen(models))["data"][0]["id"])


def paid(prompt: list[dict[str, str]]) -> float:
    return float(watched(prompt) == "policy")


def side_by_side(prompt: list[dict[str, str]]) -> float:
    with ThreadPoolExecutor(2) as threads:
        said = list(threads.map(lambda text: ask([{"role": "user", "content": text}]), ["What is 4 + 5?"] * 2))
    return float(len({one["choices"][0]["message"]["content"] for one in said}))


@pytest.mark.parametrize(("agent", "script", "reward"), [(paid, ["No.", "Yes."], 1.0), (side_by_side, ["a", "b"], 2.0)])
def test_what_an_agent_gets(agent: Any, script: list[str], reward: float):
    found, _ = played(open_agents(agent), script)
    assert found.episode is not None
    assert found.episode.reward == reward


WRONG: list[tuple[dict[str, Any], int]] = [
    ({"token": "guess"}, 401),
    ({"path": "/embeddings"}, 404),
    ({"n": 2}, 400),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400),
    ({"messages": "Hello"}, 400),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]}, 400),
]


def refused(prompt: list[dict[str, str]]) -> float:
    ask(begun(prompt))
    for wrong, status in WRONG:
        with pytest.raises(urllib.error.HTTPError, match=str(status)):
            ask(**{"messages": begun(prompt), **wrong})
    return 1.0


def test_a_wrong_request_is_refused_and_reaches_no_policy():
    found, _ = played(open_agents(refused), ["Hello."])
    assert found.episode is not None
    assert found.episode.reward == 1.0, found.episode


def raises(prompt: list[dict[str, str]]) -> None:
    ask(begun(prompt))
    raise RuntimeError("no luck")


def dies(prompt: list[dict[str, str]]) -> None:
    ask(begun(prompt))
    os._exit(3)


def hangs(prompt: list[dict[str, str]]) -> None:
    ask(begun(prompt))
    import time

    time.sleep(60)


def strange(prompt: list[dict[str, str]]) -> str:
    ask(begun(prompt))
    return "much"


@pytest.mark.parametrize(
    ("agent", "ended"), [(raises, "exception"), (dies, "crash"), (hangs, "timeout"), (strange, "exception")]
)
def test_an_agent_that_fails_ends_its_episode_alone(agent: Any, ended: str):
    limits = EnvironmentConfig(tool_seconds=1.0 if agent is hangs else 30.0)
    told, _ = played(open_agents(agent, limits=limits), ["Hello."])
    assert told.episode is not None
    assert told.episode.ended == ended
    lost = told.episode.invalid.startswith("the environment's reward: ")  # it cannot say what it would have given
    assert lost == (ended != "exception")
    if agent not in (raises, dies):
        return
    invalid, _ = played(open_agents(agent, limits=limits), ["Hello."], mistakes="invalid", failures="invalid")
    assert invalid.episode is not None
    assert invalid.episode.invalid.startswith(ended)


def unwritable(prompt: list[dict[str, str]]) -> None:
    said = ask(begun(prompt))["choices"][0]["message"]
    ask(
        [*begun(prompt), said, {"role": "user", "content": "Sure?"}],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
    )


def test_a_request_that_the_template_cannot_write_ends_its_episode_alone():
    found, _ = played(open_agents(unwritable), ["Hello."], mistakes="invalid", tokenizer=FUSSY)
    assert found.episode is not None
    assert found.episode.ended == "exception"
    assert found.episode.invalid.startswith("exception: the chat template of a-model: expected")


def test_the_calls_of_an_agent_have_their_limit():
    found, _ = played(open_agents(with_tools), TURNS[:1], calls=1)
    assert found.episode is not None
    assert (found.episode.ended, found.episode.calls, found.episode.reward) == ("calls", (), 0.0)


def silent(prompt: list[dict[str, str]]) -> float:
    return 1.0


class NoFunction:
    pass


@pytest.mark.parametrize(
    ("agent", "said"), [(silent, "before it asked the policy"), (NoFunction, "expected a function")]
)
def test_what_is_no_agent_is_refused_before_a_turn_is_sampled(agent: Any, said: str):
    with pytest.raises(UserError, match=said):
        played(open_agents(agent), ["Hello."])


AGENT = """
import json, os, urllib.request
def agent(prompt, number):
    messages = [dict(one) for one in prompt]
    for _ in range(2):
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps({"messages": messages}).encode(),
            {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
        message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
        messages += [message, {"role": "user", "content": "More."}]
    return float(len(message["content"]) % 3)
"""


def test_a_run_learns_from_an_agent_in_a_file(tmp_path: Path, tiny: Path, with_page: None):
    (tmp_path / "agent.py").write_text(AGENT)
    rows = [{"prompt": [{"role": "user", "content": f"Say {number}."}], "number": number} for number in range(4)]
    config = small_config(
        tmp_path,
        steps=2,
        model={"chat_template": "tools"},
        rollout={"problems_per_step": 2, "group_size": 4, "max_tokens": 24, "stop": ["a", "e", "s", "t"]},
        evaluation={"problems": 0},
        environment={"max_tokens": 140, "agent": f"{tmp_path / 'agent.py'}:agent"},
    )
    Trainer(model=str(tiny), task=rows, rewards={"environment": 1.0}, config=config).train()
    episodes = [one.episode for found in read_rollouts(tmp_path / "run", 1) for one in found.group.completions]
    ends = {(one.ended, len(one.ends)) for one in episodes if one}
    assert ("finished", 2) in ends
    assert ends <= {("finished", 2), ("length", 1), ("length", 2), ("tokens", 1)}
    for one in filter(None, episodes):
        paid = float(len(one.messages[-1]["content"]) % 3) if one.ended == "finished" else 0.0
        assert one.reward == paid, one
