"""As a program: `grouprl` on a rank, with a fault; FAULT and the arguments of `grouprl` follow."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from grouprl.cli import main
from grouprl.learner.terms import PolicyTerm
from grouprl.run import train
from grouprl.trainer import terminal

RANK = int(os.environ["RANK"])


def killed_while_closing() -> None:
    """When torchrun has started it for the third time, rank 0 is killed after all steps, before it writes the page."""

    def killed(directory: Path) -> Path:
        print("killed while closing", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        return directory

    if RANK == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "2":
        terminal.report_of = killed


def broken_gradients() -> None:
    """From its fourth pack on, the loss of rank 1 is infinite."""
    original: Callable[..., Any] = PolicyTerm.loss
    calls = iter(range(1, 10_000))

    def loss(*given: Any) -> Any:
        total, stats = original(*given)
        return (total * math.inf if next(calls) >= 4 else total), stats

    if RANK == 1:
        PolicyTerm.loss = loss


def broken_weights() -> None:
    """After each step from the second on, a weight of rank 1 is NaN, and those of rank 0 are as they were."""
    original: Callable[..., Any] = train.check_health_on_all_ranks

    def look(health: Any, number: int, metrics: Any, learner: Any) -> None:
        if number >= 2:
            with torch.no_grad():
                next(learner.policy.parameters()).view(-1)[0] = math.nan
        original(health, number, metrics, learner)

    if RANK == 1:
        train.check_health_on_all_ranks = look


if __name__ == "__main__":
    {one.__name__: one for one in (killed_while_closing, broken_gradients, broken_weights)}[sys.argv.pop(1)]()
    main()
