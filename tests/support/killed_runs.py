"""A program that makes runs on the disk of `disk.py`, each in a process that it forks, because imports take seconds.

It reads one line of JSON for each run: where, which setting, threads, GROUPRL_KERNELS, whether to resume, before which
change to die (0 = never), the file for the log of changes ("" = none). It answers with the exit status and, of a run
that ended, the number of changes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sqlite3
import sys
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import patch

import late_answers
from grouprl import Trainer
from grouprl.problems.word_problems import WordProblems
from grouprl.rewards.functions import WeightedReward
from grouprl.types import UserError
from letter_rewards import InProcess
from small_runs import ROWS, small_config

SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"name": "grpo", "passes": 2}},
    "ppo": {"algorithm": {"name": "ppo", "kl_target": 0.01, "entropy_target": 9.0}},
    "moving": {"algorithm": {"name": "grpo", "refresh_reference": 2, "reference_mixup": 0.6}},
}
EVERY = {
    "checkpoint": {"every": 2, "keep": 2},
    "evaluation": {"every": 2, "problems": 3, "samples": 2},
    "learner": {"learning_rate": 0.001, "warmup_steps": 8, "weight_decay": 0.1},
}
# Of episodes of the bundled model, whose answers come after random times.
EPISODES: dict[str, dict[str, Any]] = {
    "tool": {"max_tokens": 240},
    "game": {"game": f"{late_answers.__file__}:Game"},
    "agent": {"agent": f"{late_answers.__file__}:agent"},
}


def characters(completions: list[Any], **columns: Any) -> list[float]:
    """Differs between nearly any two episodes."""
    return [sum(len(str(message)) for message in completion) % 7 / 6 for completion in completions]


characters.in_process = True  # type: ignore[attr-defined]


def make(model: str, runs: str, setting: str, *, threads: int, resume: bool) -> None:
    if setting not in EPISODES:
        config = small_config(Path(runs), **{**EVERY, **SETTINGS[setting]})
        reward = WeightedReward("letters", InProcess(lambda _: None))
        Trainer(model, ROWS, [reward], config=config).train(resume=resume)
        return
    # Two threads divide the rows of kernels from 32 on; without kernels a step takes 4 times as long.
    group = 16 if os.environ["GROUPRL_KERNELS"] == "on" else 4
    config = small_config(
        Path(runs),
        model={"threads": threads},
        steps=2,
        # Behavior and old log-probs both enter the loss.
        algorithm={"name": "grpo", "passes": 2, "correction_kind": "truncate"},
        rollout={"problems_per_step": 2, "group_size": group, "max_tokens": 90 if setting == "tool" else 24},
        environment={"turns": 3, "max_tokens": 160, **EPISODES[setting]},
        learner={"learning_rate": 2e-4},
        checkpoint={"every": 1},
        evaluation={"problems": 0},
    )
    drawn = WordProblems(difficulty=1).problems("train")[:8]
    rows = [{"prompt": drawn[n].prompt, "number": 7 + n} for n in range(8)]
    if setting == "game":
        rows = [{**row, "width": 15} for row in rows]
    tools = [late_answers.calculate] if setting == "tool" else []
    reward = WeightedReward("characters", characters)
    with patch("grouprl.trainer.terminal.report_of", lambda directory: directory / "report.html"):  # half of the time
        Trainer("abacus_tools", rows, [reward], config=config, tools=tools).train(resume=resume)


# Modules that a run imports when it needs them; here they are imported before the fork.
LATER = (
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.llama.modeling_llama",
    "grouprl.environments.conversation",
    "numpy.ctypeslib",
    "rich.status",
    "rich._emoji_codes",
)


def main(library: str, model: str) -> None:
    disk = ctypes.CDLL(library)
    for name in LATER:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                output = os.open(os.devnull if asked["quiet"] else "/dev/stderr", os.O_WRONLY)
                os.dup2(output, 1)
                where = os.path.realpath(asked["runs"])
                disk.watch_disk(where.encode(), ctypes.c_long(asked["kill_at"]), asked["log"].encode())
                os.environ["GROUPRL_KERNELS"] = asked["kernels"]
                make(model, asked["runs"], asked["setting"], threads=asked["threads"], resume=asked["resume"])
                os.write(write, str(disk.disk_changes()).encode())
                status = 0
            except (UserError, OSError, ValueError, RuntimeError, sqlite3.Error):
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        changes = os.read(read, 32).decode()
        os.close(read)
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), int(changes or 0)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
