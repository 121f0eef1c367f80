"""Runs whole parts of a step side by side on a CPU, packs or rows, instead of threads inside each operation.

Threads inside an operation wake and wait for each other in each of thousands of small operations, which can cost a
small model more time than a second core brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import islice
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from grouprl.forward.packing import workers_on_cpu

Result = TypeVar("Result")


def worker_count(model: nn.Module, parts: int, *, sampling: bool = False) -> int:
    """How many of `parts` equal parts of work on a model run side by side; `sampling` holds no gradients.

    Returns:
        1 or more = each on one thread, so that the result is the same bits on any number of threads. 0 = none, with all
        of torch's threads inside each operation: on a GPU, for a large model, whose products keep all threads busy, and
        for sharded weights, which all ranks gather in one order.
    """
    weights = list(model.parameters())
    if weights[0].device.type != "cpu" or any(isinstance(weight, DTensor) for weight in weights):
        return 0
    size = sum(weight.numel() for weight in weights)
    return workers_on_cpu(size, parts, torch.get_num_threads(), sampling=sampling)


def side_by_side(jobs: Sequence[Callable[[], Result]], workers: int) -> Iterator[Result]:
    """Yields the results of the jobs in their order.

    Args:
        jobs: do not depend on each other. Modes of torch that belong to a thread, such as `no_grad`, are theirs to set.
        workers: as from `worker_count`; no more results wait than that. A job runs when its result is asked for where
            there is at most one worker.

    Raises:
        Exception: of a job, in the place of its result; the jobs after it may not run.
    """
    if workers == 0:
        yield from (job() for job in jobs)
        return
    waiting: deque[Future[Result]] = deque()
    pending = iter(jobs)
    with one_thread():
        if workers == 1:
            yield from (job() for job in jobs)
            return
        pool = _pool(workers)
        try:
            waiting.extend(pool.submit(job) for job in islice(pending, workers))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(job) for job in islice(pending, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


def interleaved(streams: Sequence[Callable[[], Iterator[Result]]], workers: int) -> Iterator[Result]:
    """Yields the results of streams as they come, without empty ones.

    Args:
        streams: one for each worker, as in `side_by_side`; a single one runs in the caller's thread.
        workers: as from `worker_count`.

    Raises:
        Exception: of a stream; the others end after their next result.
    """
    if workers < 2:
        with one_thread() if workers else nullcontext():
            yield from (result for stream in streams for result in stream() if result)
        return
    results: SimpleQueue[tuple[int, Result | None]] = SimpleQueue()  # with the stream's index; None = it has ended
    stop = Event()

    def run(index: int) -> None:
        try:
            for result in streams[index]():
                if stop.is_set():
                    return
                if result:
                    results.put((index, result))
        finally:
            results.put((index, None))

    with one_thread():
        pool = _pool(workers)
        try:
            running = {index: pool.submit(run, index) for index in range(len(streams))}
            while running:
                index, result = results.get()
                if result is None:
                    running.pop(index).result()
                else:
                    yield result
        finally:
            stop.set()
            pool.shutdown()


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch use one thread inside each operation, in this thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
