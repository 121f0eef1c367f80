"""Runs whole parts of a step side by side on a CPU, packs or rows, instead of threads inside each operation.

Threads inside an operation wake and wait for each other in each of thousands of small operations, which can cost a
small model more time than a second core brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch
from torch import nn

Result = TypeVar("Result")

# A worker holds a gradient of its own: 512 MiB of float32.
_MOST_WEIGHTS = 1 << 27


def worker_count(model: nn.Module, parts: int) -> int:
    """How many of `parts` equal parts of work on a model run side by side: 1 on a GPU and for large models."""
    weights = list(model.parameters())
    if weights[0].device.type != "cpu" or sum(weight.numel() for weight in weights) > _MOST_WEIGHTS:
        return 1
    return max(1, min(torch.get_num_threads(), parts))


def side_by_side(jobs: Sequence[Callable[[], Result]], workers: int) -> Iterator[Result]:
    """Yields the results of the jobs in their order.

    Args:
        jobs: do not depend on each other. Modes of torch that belong to a thread, such as `no_grad`, are theirs to set.
        workers: jobs that run at once, each with its share of torch's threads; no more results wait than that. With one
            worker a job runs when its result is asked for.

    Raises:
        Exception: of a job, in the place of its result; the jobs after it may not run.
    """
    if workers == 1:
        yield from (job() for job in jobs)
        return
    waiting: deque[Future[Result]] = deque()
    pending = iter(jobs)
    with _threads_of_each(workers) as threads:
        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,))
        try:
            waiting.extend(pool.submit(job) for job in islice(pending, workers))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(job) for job in islice(pending, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _threads_of_each(workers: int) -> Iterator[int]:
    all_threads = torch.get_num_threads()
    each = max(1, all_threads // workers)
    torch.set_num_threads(each)
    try:
        yield each
    finally:
        torch.set_num_threads(all_threads)
