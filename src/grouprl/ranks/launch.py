"""Joins the process group that torchrun started this process for, by torchrun's environment variables."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from grouprl.forward.devices import GPU
from grouprl.ranks.ranks import Ranks
from grouprl.types import UserError

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_STORE_SECONDS = timedelta(seconds=60)
_PARENT_SECONDS = 0.5
_RUNS = count()  # of this process: a second run must not meet the addresses of the first one's connections


@contextmanager
def open_ranks(
    *, exact: bool = False, shard: bool = False, seconds: float = 1500.0, device: str = "auto", threads: int = 0
) -> Iterator[Ranks]:
    """The ranks of this run: those that torchrun started, or a single process.

    It chooses the rank's GPU, and gives each of a machine's ranks its part of the processor's cores.

    Raises:
        UserError: the variables are incomplete, the ranks do not fit the configuration, or one of them does not come.
    """
    world = _number("WORLD_SIZE")
    if world == 1:
        yield Ranks(exact=exact)
        return
    if lacking := [name for name in _VARIABLES if not os.environ.get(name)]:
        raise UserError(
            f"WORLD_SIZE={world}: expected also {', '.join(lacking)}, got none: start the ranks with torchrun, or "
            "unset WORLD_SIZE"
        )
    Ranks(world=world, exact=exact)  # raises for a wrong number, before anything is started
    _end_with_torchrun()
    backend, local, on_machine = "gloo", _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE")
    if device != "cpu" and torch.cuda.is_available():
        if local >= torch.cuda.device_count() or device not in ("auto", GPU):
            raise UserError(
                f"model.device: expected auto with a GPU for each of the {on_machine} ranks of this machine, got "
                f"{device} with {torch.cuda.device_count()}: lower --nproc-per-node, or set it to auto"
            )
        torch.cuda.set_device(local)
        backend = f"cpu:gloo,{GPU}:nccl"
    if not threads and os.environ.get("OMP_NUM_THREADS") == "1":  # set by torchrun, whatever the machine
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // on_machine))
    rank, store = _number("RANK"), _store(f"run {next(_RUNS)}")
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))
    except RuntimeError as error:
        raise UserError(
            f"expected {world} ranks at {os.environ['MASTER_ADDR']} within {seconds:g} s, got {error}: see the "
            "output of the others"
        ) from error
    mesh = None
    if shard:  # over all ranks; on several machines over the ranks of each, because links between machines are slow
        mesh_device = GPU if GPU in backend else "cpu"
        if on_machine == 1 or world % on_machine or world == on_machine:
            mesh = init_device_mesh(mesh_device, (world,))
        else:
            sizes = (world // on_machine, on_machine)
            mesh = init_device_mesh(mesh_device, sizes, mesh_dim_names=("machines", "ranks"))
    yield Ranks(rank, world, on_machine, exact, seconds, store, mesh)
    # Not after an error: the others must not see a closed connection before this rank has reported it.
    dist.destroy_process_group()


@cache
def _end_with_torchrun() -> None:
    """Ends this process when its parent ends, or has ended: a torchrun that is killed cannot end its ranks."""

    from grouprl import __parent__  # when this process began, which loading torch makes long ago

    def watch() -> None:
        while os.getppid() == __parent__:
            time.sleep(_PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="torchrun").start()


def note_begun(run: Path) -> None:
    """Notes for the ranks that torchrun may start again (--max-restarts) that this run directory is theirs."""
    if _RESTARTS in os.environ:
        _whole_store().set(f"grouprl/begun/{run}", "")


def was_begun(run: Path) -> bool:
    """Whether torchrun started this process again after a rank failed, and ranks before it had begun this run."""
    return os.environ.get(_RESTARTS, "0") != "0" and bool(_whole_store().check([f"grouprl/begun/{run}"]))


def show_errors_once() -> None:
    """Makes an error of the user that ends a program one sentence, without a traceback, and code 2.

    Of several ranks one shows it. A program's own hook for exceptions stays, but for the one of torchrun's processes.
    """
    if _number("WORLD_SIZE") > 1 or sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_error


def _show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, UserError):
        sys.__excepthook__(kind, error, trace)
        return
    if may_report():
        print(f"error: {error}", file=sys.__stderr__)  # torch's own hook, which calls this one, replaces sys.stderr
    if not hasattr(sys, "ps1"):  # a console goes on
        sys.exit(2)


def may_report() -> bool:
    """Whether this process may show its error: of several ranks, only the first that fails may."""
    if _number("WORLD_SIZE") == 1:
        return True
    try:
        return bool(_store("errors").add("errors", 1) == 1)
    except (RuntimeError, KeyError, OSError, UserError):  # nobody to ask
        return True


def _store(name: str) -> Any:
    """A part of the store of all ranks, new after each restart."""
    restarts = os.environ.get(_RESTARTS, "0")
    stores = cast(Any, dist)  # whose types lack the stores
    return stores.PrefixStore(f"grouprl/{restarts}/{name}", _whole_store())


@cache
def _whole_store() -> Any:
    """The store that torchrun keeps for its processes; without torchrun, rank 0 keeps it."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_client = agent or _number("RANK") > 0
    address, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    if agent:  # torchrun opened it before it started a rank: a client of torch would try for a minute
        try:
            socket.create_connection((address, port), timeout=_STORE_SECONDS.total_seconds()).close()
        except ConnectionRefusedError:
            raise UserError(
                f"expected torchrun at {address}:{port}, got no answer: it has ended; start again"
            ) from None
    stores = cast(Any, dist)  # whose types lack the stores
    return stores.TCPStore(address, port, is_master=not is_client, timeout=_STORE_SECONDS, wait_for_workers=False)


def _number(variable: str) -> int:
    default = "0" if variable.endswith("RANK") else "1"
    text = os.environ.get(variable) or default
    if not text.isdecimal():
        raise UserError(f"{variable}: expected a number as torchrun sets it, got {text!r}: unset it, or use torchrun")
    return int(text)
