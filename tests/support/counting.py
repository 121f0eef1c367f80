"""Counters of what torch and the compiled kernels are asked to do: the same numbers on any machine, however busy."""

import ctypes
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grouprl.kernels import compiled_weights
from grouprl.kernels.build import library
from grouprl.kernels.compiled_weights import Torch, torch_functions

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

    def __enter__(self) -> Any:
        _COUNTING.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _COUNTING.remove(self)
        super().__exit__(*error)

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


_COUNTING: list[Costs] = []
# out, left, right; out, added, left, right, beta, alpha
_MULTIPLY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
_MULTIPLY_ADD = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4, ctypes.c_double, ctypes.c_double)


def count_products_of_decode_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `Costs` see the products that kernels/step.c asks torch for, until the test ends."""
    kept = []

    def counting(dtype: torch.dtype) -> Torch:
        plain = torch_functions(dtype)
        assert plain is not None
        multiply, multiply_add = _MULTIPLY(plain.multiply), _MULTIPLY_ADD(plain.multiply_add)

        def counted(out: int, left: int, right: int) -> int:
            _note(left, right)
            return int(multiply(out, left, right))

        def counted_add(out: int, added: int, left: int, right: int, beta: float, alpha: float) -> int:
            _note(left, right)
            return int(multiply_add(out, added, left, right, beta, alpha))

        kept.extend([_MULTIPLY(counted), _MULTIPLY_ADD(counted_add)])
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in kept[-2:]]
        return Torch(plain.create, plain.destroy, *addresses, plain.dtype, plain.device_type)

    monkeypatch.setattr(compiled_weights, "torch_functions", counting)


def _note(left: int, right: int) -> None:
    sizes = [_sizes(tensor) for tensor in (left, right)]
    for costs in _COUNTING:
        costs.products.append(Product(*sizes[0], sizes[1][1]))


def _sizes(tensor: int) -> tuple[int, int]:
    found = ctypes.POINTER(ctypes.c_int64)()
    failed = compiled_weights.torch_library().aoti_torch_get_sizes(ctypes.c_void_p(tensor), ctypes.byref(found))
    assert not failed
    return found[0], found[1]


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
