"""A program that makes runs of games and agents that answer at random times, each in a process that it forks.

It reads one line of JSON for each run: model, runs directory, "game" or "agent", setting of the kernels, threads, and
the step after which it is killed (0 = never). It resumes a run that was. It answers with the exit status.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from grouprl import Trainer
from grouprl.types import UserError
from killed_runs import LATER
from small_runs import small_config

CODE = """
import json, os, random, time, urllib.request

class Late:
    def reset(self):
        self.turn = 0
        return "It begins."

    def step(self, text):
        time.sleep(random.SystemRandom().random() * 0.03)
        self.turn += 1
        return f"More: {text[:3]}", text.count("e") / 10, self.turn == 3, {}

def agent(prompt, **row):
    messages = [dict(one) for one in prompt]
    for _ in range(2):
        time.sleep(random.SystemRandom().random() * 0.03)
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps({"messages": messages}).encode(),
            {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
        message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
        messages += [message, {"role": "user", "content": "More."}]
    return message["content"].count("e") / 10
"""
ROWS = [{"prompt": [{"role": "user", "content": f"Say {number}."}]} for number in range(8)]


def make(model: str, runs: Path, shape: str, threads: int) -> None:
    code = runs.parent / "late.py"
    code.write_text(CODE)
    config = small_config(
        runs,
        steps=4,
        model={"chat_template": "tools", "threads": threads},
        algorithm={"name": "grpo", "passes": 2},
        rollout={"problems_per_step": 4, "group_size": 4, "max_tokens": 12, "stop": ["a", "e"]},
        environment={"max_tokens": 140, shape: f"{code}:{'Late' if shape == 'game' else 'agent'}"},
        evaluation={"problems": 0},
        checkpoint={"every": 1, "keep": 4},
    )
    trainer = Trainer(model, ROWS, {"environment": 1.0}, config=config)
    trainer.train(resume=(runs / "run" / "config.yaml").exists())


def die_after(step: int, metrics: Path) -> None:
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < step:
        time.sleep(0.002)
    time.sleep(random.SystemRandom().random() * 0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    for name in LATER:
        importlib.import_module(name)
    for line in sys.stdin:
        model, runs, shape, kernels, threads, kill_after = json.loads(line)
        child = os.fork()
        if not child:
            status = 1
            try:
                os.environ["GROUPRL_KERNELS"] = kernels
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                if kill_after:
                    metrics = Path(runs) / "run" / "metrics.jsonl"
                    threading.Thread(target=die_after, args=(kill_after, metrics), daemon=True).start()
                make(model, Path(runs), shape, threads)
                status = 0
            except (UserError, OSError, ValueError, RuntimeError):
                traceback.print_exc()
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
