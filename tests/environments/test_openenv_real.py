"""The same calculator as a function, as a class of TRL's form, and behind a server of the real package openenv.

`make environments-env` installs that package beside the project (3 minutes, 0.6 GB); then
`make test-slow ARGS=tests/environments/test_openenv_real.py`. Continuous integration does not make it.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from grouprl import Trainer
from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.base import Call, Fault, Verdict
from grouprl.environments.openenv import OpenEnvSource
from grouprl.record.read import read_rollouts
from grouprl.tasks import load_task
from grouprl.tasks.arithmetic import UnreadableError, evaluate
from grouprl.types import Problem
from small_runs import small_config
from source_tree import ROOT

PYTHON = ROOT / ".venv-environments" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.is_file(), reason="openenv is not installed: make environments-env"),
]


def calculate(expression: str):  # without a hint of what it returns, which a server cannot give
    """Computes an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / and brackets.
    """
    try:
        found = evaluate(expression)
    except UnreadableError:
        return "error"
    return str(found) if isinstance(found, Fraction | int) else "error"


class Calculator:
    """The same as a class, which pays for each call."""

    def reset(self, **row: Any) -> None:
        self._calls = 0

    def calculate(self, expression: str):
        """Computes an arithmetic expression exactly.

        Args:
            expression: Numbers, + - * / and brackets.
        """
        self._calls += 1
        return calculate(expression)

    def get_reward(self) -> float:
        return float(self._calls)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    script = Path(__file__).parents[1] / "support" / "real_openenv.py"
    environment = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen([str(PYTHON), str(script)], stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the server ended"
        yield f"http://127.0.0.1:{port}"
        server.kill()


def trained(folder: Path, name: str, **shape: Any) -> tuple[list[dict[str, Any]], list[Any], list[float | None]]:
    """Metrics, groups, and the environments' rewards of two steps of the bundled model that can write calls."""
    problems = load_task("calculator", difficulty=1).problems("train")[:8]
    rows = [{"prompt": list(one.prompt), "answer": one.columns["answer"]} for one in problems]
    config = small_config(
        folder,
        name,
        steps=2,
        rollout={"problems_per_step": 4, "group_size": 4, "max_tokens": 120},
        learner={"learning_rate": 2e-4},
        environment={"max_tokens": 300, "turns": 3, "url": shape.pop("url", None)},
        evaluation={"problems": 0},
    )
    trainer = Trainer(model="abacus_tools", task=rows, rewards=["correct_answer"], config=config, **shape)
    metrics = [
        {key: row[key] for key in row if not re.search("time|second|rss", key)} for row in trainer.train().metrics()
    ]
    found = [one for step in (1, 2) for one in read_rollouts(folder / name, step)]
    episodes = [one.episode for group in found for one in group.group.completions]
    return metrics, found, [one.reward for one in episodes if one is not None]


def test_a_function_a_class_and_a_real_server_give_the_same_run(tmp_path: Path, url: str) -> None:
    function, groups, unjudged = trained(tmp_path, "function", tools=[calculate])
    object_, theirs, paid = trained(tmp_path, "class", environment_factory=Calculator)
    server, remote, paid_too = trained(tmp_path, "server", url=url)
    assert function == object_ == server  # loss, gradient, lengths, entropy: of the policy's own tokens alone
    assert sum(row["episodes/calls"] for row in function) > 0
    for ours, others in zip(groups, zip(theirs, remote, strict=True), strict=True):
        for other in others:
            assert ours.group.prompt_ids == other.group.prompt_ids
            rewards = [[(one.earned, one.components) for one in group.outcomes] for group in (ours, other)]
            assert rewards[0] == rewards[1]  # a server's have the rewards of turns, too
            for one, two in zip(ours.group.completions, other.group.completions, strict=True):
                assert (one.token_ids, one.logprobs) == (two.token_ids, two.logprobs)
                assert one.episode.observations == two.episode.observations
                assert one.episode.messages == two.episode.messages
    assert set(unjudged) == {None}
    assert paid == paid_too
    assert max(paid) > 0  # type: ignore[type-var]


def test_what_a_real_server_refuses_is_a_fault_and_ends_nothing(url: str) -> None:
    problem = Problem("p", "Compute.", {})
    environment = OpenEnvSource(url, EnvironmentConfig(tool_seconds=20.0)).open(problem)
    environment.reset(problem, 0)
    made = [Call("calculate", {"expression": text}) for text in ("2 *", "2 * (3 + 4)")]
    found = environment.call([*made, Call("calculate", {"text": "2"}), Call("guess", {})])
    assert [one.text for one in found[:2]] == ["error", "14"]
    assert [one.fault for one in found] == [None, None, Fault.ARGUMENTS, Fault.UNKNOWN_TOOL]
    assert environment.verdict() == Verdict(2.0)
    environment.close()
    again = OpenEnvSource(url).open(problem)
    again.reset(problem, 0)
    assert again.verdict() == Verdict(0.0)
    again.close()
