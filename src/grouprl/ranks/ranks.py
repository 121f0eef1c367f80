"""The ranks of a run: what each one computes of the whole, and how all of them get all of it.

Every rank makes the same calls in the same order. Values travel as JSON: a pickle from the network could run code.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count, zip_longest
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from grouprl.forward.devices import traits_of
from grouprl.forward.progress import PROGRESS
from grouprl.ranks.shares import TreeSum, shares
from grouprl.types import UserError

Value = TypeVar("Value")
_SHARDS = 8  # parts of the packs whose gradients are added in a fixed tree; a power of 2
_LAST_WORD = 1.0  # seconds in which the others may notice too that a connection broke


class LeftError(Exception):
    """Another rank left the work that all do together, see `Ranks.leave`."""


@dataclass(frozen=True)
class Ranks:
    """The processes that compute a run together. The default is a single one, whose operations change nothing."""

    rank: int = 0
    world: int = 1
    on_machine: int = 1  # ranks of this machine
    exact: bool = False  # add gradients in an order that does not depend on the number of ranks
    seconds: float = 0.0  # longest wait for another rank
    store: Any = None  # of torch.distributed, where each rank says what it waits for
    mesh: DeviceMesh | None = None  # the ranks that keep a part of the weights each; None = each keeps all
    _open: set[int] = field(default_factory=set, repr=False, compare=False)  # the meeting in progress
    _meetings: Iterator[int] = field(default_factory=lambda: count(1), repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.exact and _SHARDS % self.world:
            raise UserError(
                f"distributed.exact: expected 1, 2, 4 or 8 ranks, got {self.world}: change --nproc-per-node or "
                "--nnodes, or set distributed.exact=false"
            )

    @property
    def leads(self) -> bool:
        """Whether this rank writes the run directory and the terminal."""
        return self.rank == 0

    # What this rank computes

    def shards(self, costs: Sequence[int]) -> list[list[int]]:
        """The parts of some work whose results this rank adds up, one after the other: indices in each part.

        Args:
            costs: of each piece of work, for example its tokens; the same on every rank.
        """
        if not self.exact:
            return [shares(costs, self.world)[self.rank]]
        count = _SHARDS // self.world
        return shares(costs, _SHARDS)[self.rank * count : (self.rank + 1) * count]

    def own(self, costs: Sequence[int]) -> list[int]:
        """The indices of the work that this rank does, ascending."""
        return sorted(chain.from_iterable(self.shards(costs)))

    def passes(self, costs: Sequence[int]) -> list[int]:
        """The indices of `own`, and repetitions of the cheapest one whose result does not count.

        Ranks that keep a part of the weights each must all make as many passes, because a pass gathers weights.
        """
        share = self.own(costs)
        if self.mesh is None or not costs:
            return share
        most = max(map(len, shares(costs, self.world)))
        return share + [costs.index(min(costs))] * (most - len(share))

    # What all ranks get

    def gather(self, value: Any, what: str) -> list[Any]:
        """Gathers a value of JSON from each rank, in their order. `what` names the values, for an error.

        Raises:
            LeftError: another rank called `leave` instead.
        """
        if self.world == 1:
            return [value]
        texts = self._exchange(json.dumps(value).encode(), what)
        if not all(texts):
            raise LeftError
        return list(map(json.loads, texts))

    def leave(self) -> None:
        """Instead of the next `gather`: it raises LeftError on the other ranks, which must expect it there."""
        if self.world > 1:
            self._exchange(b"", "end")

    @property
    def meets(self) -> bool:
        """Whether this rank is in an operation of all ranks, which it must not leave."""
        return bool(self._open)

    def _exchange(self, text: bytes, what: str) -> list[bytes]:
        data = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
        with self._meeting(what):
            sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.world)]
            dist.all_gather(sizes, torch.tensor([len(data)]))
            longest = int(max(sizes))
            parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world)]
            dist.all_gather(parts, torch.nn.functional.pad(data, (0, longest - len(data))))
        return [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]

    def merged(
        self,
        share: Iterable[tuple[int, Value]],
        what: str,
        *,
        write: Callable[[Value], Any] = lambda value: value,
        read: Callable[[Any], Value] = lambda value: value,
    ) -> Iterator[Value]:
        """Yields the values of all ranks in the order of their indices; those of a single process as they come.

        Args:
            share: the values of this rank with their indices.
            what: names the values, for an error.
            write: makes JSON of a value.
            read: makes a value of what `write` made.
        """
        if self.world == 1:
            yield from (value for _, value in share)
            return
        parts = self.gather([[index, write(value)] for index, value in share], what)
        yield from (read(value) for _, value in sorted(chain.from_iterable(parts), key=itemgetter(0)))

    def decided(self, decide: Callable[[], Any], what: str) -> Any:
        """Returns the value of JSON that rank 0 decides; the others do not call the function."""
        return self.gather(decide() if self.leads else None, what)[0]

    def agree(self, text: str, what: str) -> None:
        """Checks that a text is the same on every rank.

        Raises:
            UserError: it is not.
        """
        texts = self.gather(text, what)
        for rank, other in enumerate(texts):
            for ours, theirs in zip_longest(texts[0].splitlines(), other.splitlines(), fillvalue=""):
                if ours != theirs:
                    raise UserError(
                        f"expected the same {what} on every rank, got {ours.strip()!r} on rank 0 and "
                        f"{theirs.strip()!r} on rank {rank}: start all ranks with the same command and the same files"
                    )

    def combine(self, parts: Tensor, what: str) -> Tensor:
        """Adds the tensors of all ranks, in place. Where all others hold 0, a value stays as it is to the bit."""
        if self.world == 1:
            return parts
        here = parts if traits_of(parts.device.type).has_collectives else parts.cpu()
        with self._meeting(what):
            dist.all_reduce(here)
        return parts if here is parts else parts.copy_(here)

    def add(self, parts: Tensor, what: str) -> Tensor:
        """Adds the tensors of all ranks: with `exact` in a tree by rank, else in the order of the backend."""
        if not self.exact or self.world == 1:
            return self.combine(parts, what)
        here = parts if traits_of(parts.device.type).has_collectives else parts.cpu()
        gathered = [torch.empty_like(here) for _ in range(self.world)]
        with self._meeting(what):
            dist.all_gather(gathered, here)
        tree = TreeSum[Tensor](lambda left, right: left.add_(right))
        for tensor in gathered:
            tree.push(tensor)
        return tree.total().to(parts.device)

    @contextmanager
    def _meeting(self, what: str) -> Iterator[None]:
        """Names the ranks that do not come to a collective operation."""
        number = next(self._meetings)
        self._open.add(number)
        self._say(number, what, reports=False)
        began = time.monotonic()
        try:
            with PROGRESS.doing(lambda: f"waiting for the {what} of the other ranks"):
                yield
        except RuntimeError as error:
            waited = time.monotonic() - began
            raise UserError(
                f"expected the {what} of {self.world} ranks within {self.seconds:g} s (distributed.seconds), got none "
                f"from {self._absent(number, what)} after {waited:.1f} s: see its output; a slower machine needs more "
                "seconds; continue the run with --resume"
            ) from error
        finally:
            self._open.discard(number)

    def _say(self, number: int, what: str, *, reports: bool) -> None:
        self.store.set(f"rank {self.rank}", json.dumps([number, what, reports, os.getpid(), socket.gethostname()]))

    def _absent(self, number: int, what: str) -> str:
        """Names the ranks that did not come to a meeting, or broke off in it."""
        behind, silent = [], []
        try:
            self._say(number, what, reports=True)
            time.sleep(_LAST_WORD)
            for rank in range(self.world):
                reached, last, reports, process, host = json.loads(self.store.get(f"rank {rank}"))
                name = f"rank {rank} (process {process} on {host}, last seen at the {last})"
                if reached < number:
                    behind.append(name)
                elif not reports:
                    silent.append(name)
        except RuntimeError:  # the store is gone with the machine that held it
            return "a rank on the machine of rank 0"
        return ", ".join(behind or silent) or "a rank that cannot be named"
