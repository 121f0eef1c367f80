"""Runs on several ranks, started by the real torchrun; as a program: `grouprl` commands, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_runs import ROWS, Ended, small_settings, write_rows

SUPPORT = Path(__file__).parent
# 3 groups of 4 in packs of at most 48 tokens: more packs than ranks, and some virtual shards without a pack.
SECTIONS: dict[str, Any] = {
    "rollout": {"problems_per_step": 3, "group_size": 4, "max_tokens": 8},
    "learner": {"learning_rate": 0.01, "micro_batch_tokens": 48},
    "evaluation": {"problems": 3, "samples": 2},
}


@dataclass(frozen=True)
class Place:
    """A model, problems and a reward on the disk, and a folder of runs."""

    model: Path
    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def arguments(self, name: str, *more: str, **changes: Any) -> list[str]:
        """Of `grouprl`: a small run of this name."""
        rows = self.folder / "rows.jsonl"
        if not rows.exists():
            write_rows(rows, ROWS)
        settings = small_settings(self.runs, **{**SECTIONS, "steps": 3, **changes})
        reward = f"{SUPPORT / 'letter_rewards.py'}:letters"
        data = ["task=jsonl", f"task.path={rows}"]
        return ["train", "--model", str(self.model), "--name", name, "--reward", reward, *more, *data, *settings]


def start(
    ranks: int, program: Sequence[str], *, options: Sequence[str] = (), standalone: bool = True
) -> subprocess.Popen[str]:
    """`torchrun` with this program on some ranks."""
    paths = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    alone = ["--standalone"] if standalone else []
    return subprocess.Popen(
        [*launcher, *alone, *options, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


def ended(process: subprocess.Popen[str], *, seconds: float = 120.0) -> Ended:
    """Waits for the end of a `start`; torchrun ends its ranks when it gets a signal."""
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate()
        raise
    return Ended(process.returncode, text, "")


def torchrun(ranks: int, arguments: Sequence[str], *, options: Sequence[str] = ()) -> Ended:
    """`torchrun -m grouprl ARGUMENTS`."""
    return ended(start(ranks, ["-m", "grouprl", *arguments], options=options))


def torchrun_all(ranks: int, commands: Sequence[Sequence[str]]) -> Ended:
    """Several commands of `grouprl` in the same processes, because each start takes seconds."""
    return ended(start(ranks, [str(Path(__file__)), json.dumps(commands)]))


def save_again(run: Path, target: Path, *changes: str) -> None:
    """Loads the learner of a run's newest checkpoint on the ranks of this process, and saves it into `target`."""
    from grouprl.config.run import RunConfig, load_config
    from grouprl.forward.devices import resolve_device
    from grouprl.models.load import load_model, load_tokenizer
    from grouprl.ranks import open_ranks
    from grouprl.record.layout import RunDirectory
    from grouprl.run.assemble import make_learner
    from grouprl.run.checkpoint import read_state, save_checkpoint

    config = load_config(RunConfig, [run / "config.yaml"], changes)
    checkpoint = RunDirectory(run).checkpoints()[-1]
    state = read_state(checkpoint)
    with open_ranks(**dict(config.distributed), device=config.model.device, threads=config.model.threads) as ranks:
        model = load_model(config.model.path, device=resolve_device(config.model.device))
        learner = make_learner(config, model, (checkpoint, state), ranks)
        save_checkpoint(target, state, learner, load_tokenizer(config.model.path), keep=1)


def refused(folder: str, command: Sequence[str]) -> None:
    """A command that every rank refuses: it works in FOLDER/RANK, and prints the reason; {rank} may stand in it."""
    import torch.distributed as dist

    from grouprl import UserError
    from grouprl.cli import app

    rank = os.environ["RANK"]
    os.chdir(Path(folder) / rank)
    try:
        app([argument.replace("{rank}", rank) for argument in command], standalone_mode=False)
    except UserError as error:
        name = command[command.index("--name") + 1]
        print(f"rank {rank} refuses {name}: {error}", flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    from grouprl.cli import app

    for command in json.loads(sys.argv[1]):
        if command[0] == "save_again":
            save_again(Path(command[1]), Path(command[2]), *command[3:])
        else:
            app(command, standalone_mode=False)
