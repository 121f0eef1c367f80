"""Scores a typed completion of a recorded problem as the run scores its own: same rewards, same limits.

It is a program of its own, `python -m grouprl.lab.trying`, so that neither a task nor a reward is loaded where the lab
answers: it reads {"step", "group", "text"} and writes {"answer"} or {"error"}, both as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grouprl.leaves import leaf
from grouprl.record.files import json_text
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_rollouts
from grouprl.types import UserError

MOST_TEXT = 100_000  # characters
_SECONDS = 300.0  # in all: torch, the task and perhaps a reward model are loaded first
_one_at_a_time = threading.Semaphore(1)


def try_completion(folder: Path, step: int, group: int, text: str) -> dict[str, Any]:
    """The scores of a text as a completion of a recorded group's problem.

    Args:
        folder: the run directory.
        step, group: the place of the group.
        text: the completion.

    Returns:
        `rewards`: name, weight and value of each, None where it does not apply; `total`, None when invalid; `invalid`,
        why; `correct`, what the verifier says, None without one; `tokens`, how many the text has.

    Raises:
        UserError: another text is being scored, or what the run itself would say.
    """
    if len(text) > MOST_TEXT:
        raise UserError(f"text: expected at most {MOST_TEXT} characters, got {len(text)}")
    if not _one_at_a_time.acquire(timeout=0):
        raise UserError("another completion is being scored: wait for it")
    try:
        asked = json_text({"step": step, "group": group, "text": text})
        command = [sys.executable, "-P", "-m", "grouprl.lab.trying", str(folder)]
        ended = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=_SECONDS, check=False)
        answer = json.loads(ended.stdout.splitlines()[-1]) if ended.stdout.strip() else {}
    except subprocess.TimeoutExpired:
        raise UserError(f"expected a score within {_SECONDS:g} s, got none: check the task and the rewards") from None
    finally:
        _one_at_a_time.release()
    if "answer" not in answer:
        raise UserError(answer.get("error") or f"the scorer ended with code {ended.returncode}: {ended.stderr[-2000:]}")
    return dict(answer["answer"])


def _scores(folder: Path, step: int, group: int, text: str) -> dict[str, Any]:
    # Here, not above: the lab's own process needs none of it.
    from grouprl.run.machine import with_dtype
    from grouprl.run.opened import OpenedRun
    from grouprl.trainer.trial import with_newest
    from grouprl.types import Completion, Group, StopReason

    config = leaf("received.trust").trusted_config([RunDirectory(folder).config], [])
    groups = read_rollouts(folder, step)
    if group >= len(groups):
        raise UserError(f"step {step}: expected a group below {len(groups)}, got {group}")
    recorded = groups[group].group
    opened = OpenedRun(with_newest(with_dtype(config), folder))
    # A record has its columns as JSON has them; the task has them whole.
    train = {problem.id: problem for problem in opened.task.problems("train")}
    problem = train.get(recorded.problem.id, recorded.problem)
    ids = tuple(opened.tokenizer.encode(text, add_special_tokens=False))
    completion = Completion(0, ids, (0.0,) * len(ids), (0.0,) * len(ids), text, StopReason.END, 0)
    typed = Group(problem, recorded.prompt_ids, (completion,))
    ((outcome,),), weights = opened.score([typed], opened.rewards, step)
    shown = [{"name": name, "weight": weights.get(name), "value": value} for name, value in outcome.components.items()]
    return {
        "rewards": shown,
        "total": outcome.total if outcome.valid else None,
        "invalid": outcome.reason or None,
        "correct": outcome.correct,
        "tokens": len(ids),
    }


def _main() -> None:
    asked: Mapping[str, Any] = json.load(sys.stdin)
    try:
        said: dict[str, Any] = {"answer": _scores(Path(sys.argv[1]), asked["step"], asked["group"], asked["text"])}
    except UserError as error:
        said = {"error": str(error)}
    print(json_text(said), flush=True)


if __name__ == "__main__":
    _main()
