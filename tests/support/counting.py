"""Counters of what torch and the compiled kernels are asked to do: the same numbers on any machine, however busy."""

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grouprl.models.kernels.build import library

_aten = torch.ops.aten
# Which argument is the left factor. bmm, of attention in torch alone, is not counted among the products.
_PRODUCTS = {_aten.mm: 0, _aten.addmm: 1, _aten.addmm_: 1}


class Product(NamedTuple):
    """[rows, inner] @ [inner, columns]."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.columns


class Costs(TorchDispatchMode):
    """Counts what is computed inside `with`, backward passes included; views are calls that allocate nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0  # of aten functions
        self.products: list[Product] = []
        self.allocated = 0  # bytes of all results
        self.largest = 0  # bytes of the largest of them
        self.peak = 0  # bytes of those that lived at once
        self._live = 0

    @property
    def flops(self) -> int:
        """Of the products."""
        return sum(product.flops for product in self.products)

    def passes(self, *, mlp: int, vocabulary: int, layers: int) -> list[tuple[int, int]]:
        """(tokens read, tokens predicted) of each forward pass so far, by the products of these sizes."""
        found, read = [], 0
        for product in self.products:
            if product.inner == mlp:
                read += product.rows
            elif product.columns == vocabulary:
                found.append((read // layers, product.rows))
                read = 0
        return found

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = _storages((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        self.products.extend(_products(func.overloadpacket, args))
        for pointer, storage in _storages(result).items():
            if pointer not in given:
                self._take(storage)
        return result

    def _take(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self.allocated += size
        self.largest = max(self.largest, size)
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._give, size)

    def _give(self, size: int) -> None:
        self._live -= size


def _products(function: Any, args: Sequence[Any]) -> list[Product]:
    if function is _aten.linear:  # in inference mode it is not taken apart
        return [Product(args[0].numel() // args[0].shape[-1], args[0].shape[-1], args[1].shape[0])]
    left = _PRODUCTS.get(function)
    return [] if left is None else [Product(*args[left].shape, args[left + 1].shape[1])]


def _storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    found = (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return {storage.data_ptr(): storage for storage in found if storage.nbytes()}


def count_kernels(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each compiled kernel is called from now on, until the test ends."""
    called: Counter[str] = Counter()
    kernels = library()
    assert kernels is not None

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            called[name] += 1
            return function(*arguments)

        return call

    for name, function in list(vars(kernels).items()):
        monkeypatch.setattr(kernels, name, counted(name, function))
    return called
