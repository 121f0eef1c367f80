"""Task folders in Harbor's form: what the policy can do in them, who judges it, and which are refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.checks.sandbox import why_unavailable
from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.base import Call, Environment, Verdict
from grouprl.environments.harbor import Harbor
from grouprl.environments.shapes import source_of
from grouprl.types import Problem, UserError

pytestmark = pytest.mark.skipif(why_unavailable("bubblewrap") is not None, reason="no bubblewrap here")

CANARY = "<!-- harbor-canary GUID 00000000 -->\n\n"
TESTS = """#!/bin/bash
# nobody runs apt-get install here
if [ "$(cat /app/sum.txt)" = "$EXPECTED" ] && [ "$(cat /etc/keep/note.txt)" = kept ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
DOCKERFILE = """# as small as they come
FROM ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624
ENV UNIT=cm \\
    EXPECTED=0
WORKDIR /app
COPY numbers.txt .
COPY more /etc/keep/
CMD ["sleep", "infinity"]
"""
SOLVE = "#!/bin/bash\npaste -sd+ numbers.txt | bc > sum.txt || python3 -c 'print(6)' > sum.txt\n"
FILES = {
    "task.toml": 'schema_version = "1.4"\n[verifier]\ntimeout_sec = 20.0\n[verifier.env]\nEXPECTED = "6"\n',
    "instruction.md": CANARY + "Write the sum of numbers.txt to sum.txt.\n",
    "tests/test.sh": TESTS,
    "environment/Dockerfile": DOCKERFILE,
    "environment/numbers.txt": "1\n2\n3\n",
    "environment/more/note.txt": "kept\n",
    "solution/solve.sh": SOLVE,
}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "sum", **changes: str | None) -> Path:
        renamed = {key.replace("__", "/").replace("_", "."): text for key, text in changes.items()}
        for place, text in {**FILES, **renamed}.items():
            if text is not None:
                file = tmp_path / "tasks" / name / place
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        return tmp_path / "tasks"

    return write


@pytest.fixture
def opened(folder: Callable[..., Path]) -> Iterator[Callable[..., Environment]]:
    """Opens an episode of the task `sum`, with other files as `folder` takes them."""
    sources: list[Any] = []

    def begin(**changes: str | None) -> Environment:
        task = Harbor(str(folder(**changes)), seconds=2.0)
        sources.append(source_of(EnvironmentConfig(), task))
        problem = task.problems("train")[0]
        environment: Environment = sources[-1].open(problem)
        environment.reset(problem, 0)
        return environment

    yield begin
    for source in sources:
        source.close()


def bash(environment: Environment, command: str) -> str:
    (found,) = environment.call([Call("bash", {"command": command})])
    assert found.fault is None
    return found.text


def test_the_instruction_is_the_prompt_and_bash_the_tool(folder: Callable[..., Path]) -> None:
    task = Harbor(str(folder()))
    (problem,) = task.problems("train")
    assert problem.prompt == ({"role": "user", "content": "Write the sum of numbers.txt to sum.txt."},)
    assert (problem.id, task.default_rewards, task.verifier) == ("harbor/sum", {"environment": 1.0}, "environment")
    source = source_of(EnvironmentConfig(), task)
    (tool,) = source.open(problem).tools
    assert tool["function"]["name"] == "bash"
    assert tool["function"]["parameters"]["required"] == ["command"]
    source.close()


def test_tasks_are_in_one_split_each(folder: Callable[..., Path]) -> None:
    for number in range(20):
        root = folder(f"task-{number:02}")
    task = Harbor(str(root))
    ids = {split: {one.id for one in task.problems(split)} for split in ("train", "validation", "test")}
    assert [len(ids[split]) for split in ids] == [16, 2, 2]
    assert len(set.union(*ids.values())) == 20
    assert [one.id for one in Harbor(str(root / "task-03")).problems("train")] == ["harbor/task-03"]


def test_files_last_for_an_episode_and_the_tests_judge_it(opened: Callable[..., Environment]) -> None:
    environment = opened()
    assert bash(environment, "pwd; cat numbers.txt /etc/keep/note.txt; echo $UNIT $EXPECTED; ls /tests") == (
        "/app\n1\n2\n3\nkept\ncm 0\nls: cannot access '/tests': No such file or directory\n[exit status 2]"
    )
    assert environment.verdict().reward == 0.0
    assert bash(environment, "echo 5 > sum.txt; false") == "[exit status 1]"
    assert bash(environment, "echo $(($(cat sum.txt) + 1)) > sum.txt; cat sum.txt") == "6"
    assert environment.verdict().reward == 1.0
    other = opened()
    assert bash(other, "cat sum.txt") == "cat: sum.txt: No such file or directory\n[exit status 1]"
    environment.close()


def test_the_reference_solution_is_one_command_and_passes(
    folder: Callable[..., Path], opened: Callable[..., Environment]
) -> None:
    task = Harbor(str(folder()))
    worked = task.worked(task.problems("train")[0])
    assert [one["role"] for one in worked] == ["assistant", "tool", "assistant"]
    environment = opened()
    assert bash(environment, worked[0]["tool_calls"][0]["function"]["arguments"]["command"]) == worked[1]["content"]
    assert environment.verdict().reward == 1.0
    folder(solution__other_py="print(1)")
    with pytest.raises(UserError, match=r"expected solution/solve.sh alone"):
        task.worked(task.problems("train")[0])


@pytest.mark.parametrize(
    "attack",
    [
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.json; chmod -R a-w /logs",
        "mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod -R 555 /tests; chmod 555 /",
        "(while true; do echo 1 > /logs/verifier/reward.json; done) & disown",
        "setsid bash -c 'trap \"\" TERM HUP; while true; do echo 1 > /logs/verifier/reward.json; done' & sleep 0.1",
        "yes > /full; true",
        "ln -s /dev/null /logs",
        "kill -9 1; kill -STOP 1; cat /proc/1/mem; true",
    ],
)
def test_a_command_cannot_reach_the_verdict(opened: Callable[..., Environment], attack: str) -> None:
    environment = opened()
    bash(environment, attack)
    assert environment.verdict().reward == 0.0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sleep 9; echo late", "[killed after 2 s]"),
        ("(sleep 60; echo late) & echo early", "early"),
        ("head -c 3000000 /dev/zero | tr '\\0' x", "x" * 2000 + "… [cut: 1,048,576 characters]"),
        ("for n in $(seq 200); do sleep 1 & done 2> /dev/null; echo $?", "[killed after 2 s]"),
        ("printf '\\xff\\xfe'", "\ufffd\ufffd"),
        ("ls /home /root; id -un", "ls: cannot access '/home': No such file or directory\n/root:\nroot"),
        ("echo x > /usr/x || echo > /dev/tcp/127.0.0.1/80 || exit 3", "[exit status 3]"),
    ],
)
def test_a_command_has_limits_and_ends_nothing_else(
    opened: Callable[..., Environment], command: str, said: str
) -> None:
    environment = opened()
    assert bash(environment, command).endswith(said)
    assert bash(environment, "cat numbers.txt | head -n 1") == "1"


@pytest.mark.parametrize(
    ("tests", "reward"),
    [
        ("echo 0.25 > /logs/verifier/reward.txt", 0.25),
        ('echo 0 > /logs/verifier/reward.txt; echo \'{"reward": 0.5, "style": 1}\' > /logs/verifier/reward.json', 0.5),
        ("echo '{\"score\": 2}' > /logs/verifier/reward.json; exit 1", 2.0),
        ("exit 0", None),
        ("echo nan > /logs/verifier/reward.txt", None),
        ("touch /logs/verifier/reward.txt", None),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json', None),
        ("sleep 5; echo 1 > /logs/verifier/reward.txt", None),
    ],
)
def test_the_reward_is_what_the_tests_write_and_never_a_guess(
    opened: Callable[..., Environment], tests: str, reward: float | None
) -> None:
    settings = "[verifier]\ntimeout_sec = 1.0\n"
    verdict = opened(tests__test_sh=f"#!/bin/bash\n{tests}\n", task_toml=settings).verdict()
    assert verdict.reward == reward
    assert isinstance(verdict, Verdict)
    assert bool(verdict.reason) == (reward is None)


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        (
            "environment__Dockerfile",
            "FROM ubuntu:24.04\nRUN apt-get install -y gcc\n",
            "got 'RUN apt-get install -y gcc'",
        ),
        ("environment__Dockerfile", "FROM someone/prepared:1\n", "expected FROM ubuntu, debian or python"),
        ("environment__Dockerfile", "FROM python:3.13-slim\nCOPY --from=uv /uv /bin\n", "got 'COPY --from"),
        ("environment__Dockerfile", "FROM python:3.13-slim\nENV PATH=/x:$PATH\n", "got 'ENV PATH"),
        ("task_toml", "[environment]\ngpus = 1\n", "got environment.gpus = 1"),
        ("task_toml", "[environment]\nos = 'windows'\n", "got environment.os = windows"),
        ("task_toml", "[[steps]]\nname = 'a'\n", "got steps.0"),
        ("task_toml", "[verifier]\nenvironment_mode = 'separate'\n", "got verifier.environment_mode = separate"),
        ("task_toml", "[verifier.env]\nKEY = '${OPENAI_API_KEY}'\n", "OPENAI_API_KEY"),
        ("task_toml", "[verifier\n", "expected the settings of a Harbor task"),
        ("task_toml", "verifier = 3\n", "expected the settings of a Harbor task"),
        ("task_toml", "[verifier]\ntimeout_sec = 'long'\n", "expected the settings of a Harbor task"),
        ("environment__docker-compose_yaml", "services: {}\n", "compose.yaml"),
        ("tests__test_sh", "#!/bin/bash\nuvx pytest /tests\n", "expected tests without a network, got `uvx`"),
    ],
)
def test_a_task_that_needs_more_than_a_folder_is_refused_or_left_out(
    folder: Callable[..., Path], place: str, text: str, said: str
) -> None:
    folder("good")
    root = folder("other", **{place: text})
    with pytest.raises(UserError) as refused:
        Harbor(str(root)).problems("train")
    assert said in str(refused.value)
    assert str(root / "other") in str(refused.value)
    assert [one.id for one in Harbor(str(root), leave_out=True).problems("train")] == ["harbor/good"]


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    for path in (None, str(tmp_path), str(tmp_path / "nowhere")):
        with pytest.raises(UserError, match=r"expected a folder of Harbor tasks"):
            Harbor(path).problems("train")
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "tests").mkdir()
    with pytest.raises(UserError, match=r"test.sh: expected a text file of a Harbor task"):
        Harbor(str(tmp_path)).problems("train")
    assert isinstance(Harbor.example(), Problem)
