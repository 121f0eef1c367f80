"""The task `harbor`: folders of tasks in Harbor's form, with a tool `bash` in the project's sandbox and no image.

Source: harbor 0.26 (models/task, verifier/verifier.py, agents/oracle.py), of which this takes what needs no container.
"""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Self

from grouprl.environments.base import JudgedByEnvironment, exchange
from grouprl.leaves import leaf
from grouprl.tasks.base import Split, check_setting, or_shared, partition
from grouprl.types import Problem, UserError

_CANARY = re.compile(r"\A(?:\s*(?:<!--.*canary.*-->|#.*canary.*)\n)+", re.IGNORECASE)
_PLAIN_IMAGE = re.compile(r"(?:[\w.-]+/)*(?:ubuntu|debian|python)(?:-\d+)*(?::[\w.-]+)?(?:@sha256:\w+)?", re.ASCII)
_NEEDS_NETWORK = re.compile(
    r"^[^#\n]*?\b(apt(?:-get)? (?:-\S+ )*(?:install|update)|curl|wget|uvx?|pip3? install|npm|git clone)\b", re.MULTILINE
)
_PARTS = "environment", "verifier"
_READ = "cd /logs/verifier && cat $(ls reward.json reward.txt 2> /dev/null | head -n 1); rm -rf /tests"  # JSON first
# Settings, with their values, that need more than a Linux folder and a shell; "${" takes a value from the host.
_NEEDS_MORE = re.compile(
    r"environment\.(gpus|tpu|mcp_servers|healthcheck|image|os = (?!linux$))|verifier\.(environment |collect|.*separate)"
    r"|steps|.*(compose\.ya?ml =|\$\{)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TaskFolder:
    """One task: a folder with instruction.md, task.toml and tests/test.sh."""

    path: Path
    instruction: str
    workdir: str
    files: Sequence[tuple[Path, str]]  # of `environment`, and where they stand when an episode begins
    environment: Mapping[str, str]
    tests_environment: Mapping[str, str]
    tests_seconds: float

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a folder. Raises UserError for one that is malformed, or that needs an image or a network."""
        place, context = path / "task.toml", path / "environment"
        dockerfile = context / "Dockerfile"
        image = _Image.of(context, _text(dockerfile) if dockerfile.is_file() else "")
        try:
            found = {part: {} for part in _PARTS} | tomllib.loads(_text(place))
            given = {f"{part}.{name}": value for part in _PARTS for name, value in found[part].items() if value}
            variables = {**image.environment, **given.get("environment.env", {})}
            of_tests = {**variables, **given.get("verifier.env", {})}
            seconds = float(given.get("verifier.timeout_sec", 600.0))
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{place}: expected the settings of a Harbor task, got {error}: fix it") from error
        given |= {f"steps.{n}": step for n, step in enumerate(found.get("steps", ()))}
        given |= {f"environment/{one.name}": "" for one in context.glob("*")}
        if "environment.docker_image" in given and not dockerfile.is_file():
            given["environment.image"] = "without a Dockerfile"
        if more := next(filter(_NEEDS_MORE.match, (f"{name} = {value}" for name, value in given.items())), ""):
            raise _refusal(place, f"a task for a Linux folder and a shell, got {more:.80}")
        if network := _NEEDS_NETWORK.search(_text(path / "tests" / "test.sh")):
            raise _refusal(path / "tests" / "test.sh", f"tests without a network, got `{network[1]}`")
        instruction = _CANARY.sub("", _text(path / "instruction.md"), count=1).strip()
        workdir = str(given.get("environment.workdir", image.workdir))
        return cls(path, instruction, workdir, image.files, variables, of_tests, seconds)

    @property
    def solution(self) -> str | None:
        """The text of solution/solve.sh, where it is the only file there."""
        found = [one for one in (self.path / "solution").rglob("*") if one.is_file()]
        return _text(found[0]) if [one.name for one in found] == ["solve.sh"] else None


@dataclass
class _Image:
    """What a Dockerfile makes of a plain base image."""

    context: Path
    workdir: str = "/app"
    environment: dict[str, str] = field(default_factory=dict)
    files: list[tuple[Path, str]] = field(default_factory=list)

    @classmethod
    def of(cls, context: Path, dockerfile: str) -> Self:
        made = cls(context)
        for line in map(str.strip, dockerfile.replace("\\\n", " ").splitlines()):
            try:
                follows = not line or line.startswith("#") or made._follows(*line.partition(" ")[::2])
            except ValueError:  # quotes that do not end
                follows = False
            if not follows:
                expected = "FROM ubuntu, debian or python, WORKDIR, COPY, ENV and CMD alone"
                raise _refusal(context / "Dockerfile", f"{expected}, got {line!r:.80}")
        return made

    def _follows(self, instruction: str, rest: str) -> bool:
        match instruction.upper(), shlex.split(rest, comments=True):
            case "CMD", _:
                return True
            case "FROM", [name]:
                return _PLAIN_IMAGE.fullmatch(name) is not None
            case _ if "$" in rest or "--" in rest or ".." in rest:
                return False
            case "WORKDIR", [folder]:
                self.workdir = str(PurePosixPath(self.workdir) / folder)
            case "ENV", pairs:
                self.environment |= dict(one.partition("=")[::2] for one in pairs)
            case "COPY" | "ADD", [*sources, target]:
                return self._copies([str(PurePosixPath(one.lstrip("/"))) for one in sources], target)
            case _:
                return False
        return True

    def _copies(self, sources: Sequence[str], target: str) -> bool:
        """Notes files where COPY would place them; a folder stands for what is in it. Whether each source is there."""
        found = [[self.context] if one == "." else sorted(self.context.glob(one)) for one in sources]
        into = PurePosixPath(self.workdir) / target
        named = not target.endswith("/") and str(into) != self.workdir and sum(map(len, found)) == 1
        for one in chain(*found):
            inside = sorted(one.iterdir()) if one.is_dir() else [one]
            self.files += [(each, str(into if named and one.is_file() else into / each.name)) for each in inside]
        return all(found)


class HarborSession:
    """An episode: a shell with the files of a task, whose tests give the reward."""

    def reset(self, folder: str, seconds: float) -> None:
        """Begins with the files of the task's environment."""
        self._task, self._seconds = TaskFolder.read(Path(folder)), seconds
        self._shell = leaf("shell").Shell()
        begun = self._run("true", _archive(self._task.files), seconds=60.0)
        if begun.status != 0:
            raise RuntimeError(f"expected the files of {folder} to fit the sandbox, got {begun.output}")

    def bash(self, command: str) -> str:
        """Runs a command in bash. Files stay between commands; variables do not.

        Args:
            command: The command; several lines are a script.
        """
        done = self._run(command, seconds=self._seconds)
        ended = f"[killed after {self._seconds:g} s]" if done.status is None else f"[exit status {done.status}]"
        return "\n".join(filter(None, (done.output.rstrip("\n"), ended if done.status != 0 else ""))) or "no output"

    def get_reward(self) -> float:
        """Runs the tests after everything else has ended; their reward file is the verdict, as in Harbor."""
        task = self._task
        done = self._run(
            "mkdir -p /logs/agent /logs/artifacts /logs/verifier && chmod +x /tests/test.sh && /tests/test.sh",
            _archive([(task.path / "tests", "/tests")]),
            environment=task.tests_environment,
            seconds=task.tests_seconds,
            fresh=("/logs", "/tests"),
        )
        written = self._run(_READ, seconds=10.0).output
        if done.status is None or not written.strip():
            raise RuntimeError(f"expected tests that write /logs/verifier/reward.txt, got none: {done.output[-200:]}")
        return _reward(written)

    def __del__(self) -> None:
        if hasattr(self, "_shell"):
            self._shell.close()

    def _run(
        self, command: str, files: bytes = b"", *, environment: Mapping[str, str] | None = None, **options: Any
    ) -> Any:
        of = self._task
        given = of.environment if environment is None else environment
        return self._shell.run(command, folder=of.workdir, environment=given, files=files, **options)


@dataclass(frozen=True)
class Harbor(JudgedByEnvironment):
    """The task `harbor`: commands of bash that change a folder so that its tests pass.

    `path` is a folder of task folders, or one of them. `seconds` is the longest time of a command, shorter than
    `environment.tool_seconds`. Raises UserError for a task that needs an image, a network or anything else beyond a
    Linux folder; `leave_out` skips it.
    """

    path: str | None = None
    seconds: float = 8.0
    leave_out: bool = False
    name = "harbor"
    environment = HarborSession
    tools = ()

    def __post_init__(self) -> None:
        check_setting("task.arguments.seconds", self.seconds, self.seconds > 0, "a time above 0")

    @classmethod
    def example(cls) -> Problem:
        """A problem in the form of the task's folders."""
        asked = {"role": "user", "content": "Write the sum of numbers.txt to sum.txt."}
        return Problem("harbor/example", (asked,), {"folder": "tasks/sum-of-numbers", "seconds": 8.0})

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of their folders' names."""
        return self._loaded[split]

    def worked(self, problem: Problem) -> Sequence[Mapping[str, Any]]:
        """The reference solution as one command, and what it prints. Raises UserError where solve.sh is not alone."""
        if (solution := TaskFolder.read(Path(problem.columns["folder"])).solution) is None:
            raise UserError(
                f"{problem.where}: expected solution/solve.sh alone, got another solution: write one script"
            )
        session = HarborSession()
        session.reset(**problem.columns)
        return (
            *exchange("bash", {"command": solution}, session.bash(solution)),
            {"role": "assistant", "content": "Done."},
        )

    @cached_property
    def _loaded(self) -> Mapping[Split, Sequence[Problem]]:
        leaf("shell").check_shell()
        root = Path(self.path or "").resolve()
        folders = [root] if (root / "task.toml").is_file() else sorted(one.parent for one in root.glob("*/task.toml"))
        if self.path is None or not folders or root.is_relative_to("/usr"):
            got = "a folder that the sandbox shows" if folders and self.path else f"none in {self.path}"
            raise UserError(
                f"task.path: expected a folder of Harbor tasks, each with a task.toml, got {got}: set task.path=FOLDER"
            )
        tasks = [task for folder in folders for task in self._read(folder)]
        splits = partition([one.path.name for one in tasks], validation=0.1, test=0.1)
        parts: dict[Split, list[Problem]] = {"train": [], "validation": [], "test": []}
        for one in tasks:
            prompt = ({"role": "user", "content": one.instruction},)
            columns = {"folder": str(one.path), "seconds": self.seconds}
            parts[splits[one.path.name]].append(Problem(f"harbor/{one.path.name}", prompt, columns, str(one.path)))
        if not parts["train"]:
            raise UserError(f"task.path: expected a task that is not skipped, got none in {root}: add one")
        return or_shared(parts)

    def _read(self, folder: Path) -> Iterator[TaskFolder]:
        try:
            yield TaskFolder.read(folder)
        except UserError:
            if not self.leave_out:
                raise


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a text file of a Harbor task, got {error}: add it") from error


def _refusal(place: Path, got: str) -> UserError:
    return UserError(
        f"{place}: expected {got}: the task needs more than the sandbox is; skip such tasks with "
        "task.arguments.leave_out=true"
    )


def _archive(files: Iterable[tuple[Path, str]]) -> bytes:
    """A tar archive of files and folders, each with its place."""
    with tarfile.open(fileobj=(written := io.BytesIO()), mode="w") as archive:
        for path, place in files:
            archive.add(path, place, filter=_owned_by_root)
    return written.getvalue()


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0  # `TarInfo.replace` is newer than Python 3.11.3
    return member


def _reward(text: str) -> float:
    """The reward of a reward file: a number, or of a JSON object the value of `reward`, or its only value."""
    found: Any = json.loads(text) if text.lstrip().startswith("{") else float(text)
    if isinstance(found, dict):
        found = found["reward"] if "reward" in found else found.popitem()[1] if len(found) == 1 else None
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise ValueError(f"expected a finite number as the reward, got {text!r:.80}")
    return float(found)
