"""A pretended device: its tensors say `pretend:0`, hold real numbers of the CPU, and refuse to meet those of the CPU.

torch knows it as an accelerator whose operations are written in Python, so whole runs compute on it by its name
(`model.device=pretend`), in every thread. A CPU tensor that slips into an operation is an error that names the line
that made it. Reads that would make a host wait for a GPU are counted by line, and so are copies to the device.

It says nothing about kernels, nor about the order in which a real device works.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import reduce
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import grouprl

NAME = "pretend"
DEVICE = torch.device("cpu")  # until torch knows the name, see below
SOURCE = str(Path(grouprl.__file__).parent)
aten = torch.ops.aten
# What a GPU takes indices of the CPU for; the first argument and the values must be its own.
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_OF_A_MASK = (torch.bool, torch.uint8)


class Counts:
    """Reads of the device by the host, and copies to it, by the line of `src/grouprl` that asked for them."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()


counts = Counts()
refused_dtypes: set[torch.dtype] = set()
"""Dtypes that the device lacks, as Apple's GPU lacks float64."""
factors: dict[Any, float] = {}
"""By which a faulty device multiplies the results of some operations."""


class StrayTensorError(RuntimeError):
    """A tensor of the CPU met one of the device."""


class DeviceTensor(Tensor):
    """A tensor of the CPU that says it is on the device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        if inner.dtype in refused_dtypes:
            raise TypeError(f"expected a dtype that {DEVICE} has, got {inner.dtype}, asked for at {line()}")
        tensor = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE,
        )  # fmt: skip
        tensor.inner = inner
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, *args, **(kwargs or {}))

    # By these torch knows that `Module.to` must exchange the tensors instead of their data.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors: dict[str, Tensor], _meta: None, _size: Any, _stride: Any) -> DeviceTensor:
        return DeviceTensor(tensors["inner"])

    def tolist(self) -> Any:
        counts.reads[line()] += 1
        return self.inner.tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def __getitem__(self, key: Any) -> Tensor:
        return super().__getitem__(_index(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_index(key), value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = DeviceTensor(self.inner.detach().clone())
            is_weight = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_weight else copied
        return memo[id(self)]

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.inner})"


def line() -> str:
    """The innermost line of `src/grouprl` that runs."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(SOURCE):
            return f"{path.removeprefix(SOURCE)[1:]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _index(key: Any) -> Any:
    """Lists of an index as tensors, because torch makes them on the device in a way of its own."""
    parts = key if isinstance(key, tuple) else (key,)
    made = tuple(torch.tensor(part, device=DEVICE) if isinstance(part, list) else part for part in parts)
    return made if isinstance(key, tuple) else made[0]


def _is_here(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _inside(value: Any, ours: list[DeviceTensor], others: list[Tensor]) -> Any:
    """An argument as the CPU takes it; its tensors are noted. torch's pytrees take ten times as long."""
    if type(value) is DeviceTensor:
        ours.append(value)
        return value.inner
    if isinstance(value, (list, tuple)):
        return [_inside(part, ours, others) for part in value]
    if isinstance(value, Tensor):
        others.append(value)
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def compute(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Computes an operation of the device on the CPU."""
    ours: list[DeviceTensor] = []
    others: list[Tensor] = []
    inner_args = [_inside(value, ours, others) for value in args]
    inner_kwargs = {name: _inside(value, ours, others) for name, value in kwargs.items()}
    device = kwargs.get("device")
    goes_here = bool(ours) if device is None else _is_here(device)
    if func is aten._to_copy.default or func is aten.copy_.default:
        source, target_is_here = args[0], goes_here
        if func is aten.copy_.default:
            source, target_is_here = args[1], type(args[0]) is DeviceTensor
        if (type(source) is DeviceTensor) != target_is_here:
            (counts.copies if target_is_here else counts.reads)[line()] += 1
    elif ours:
        _check(func, args, others)
    result = func(*inner_args, **inner_kwargs)
    if func in factors:
        result = result * factors[func]
    if func._schema.is_mutable:
        outer = {id(tensor.inner): tensor for tensor in ours}
        if isinstance(result, (list, tuple)):
            return type(result)(outer.get(id(value), value) for value in result)
        return outer.get(id(result), result)
    if not goes_here:
        return result
    if isinstance(result, (list, tuple)):
        return type(result)(DeviceTensor(value) if isinstance(value, Tensor) else value for value in result)
    return DeviceTensor(result) if isinstance(result, Tensor) else result


def _check(func: Any, args: Any, others: list[Tensor]) -> None:
    """Counts an operation on the device whose result a host waits for; refuses tensors of the CPU in it."""
    indices: list[Tensor] = []
    if func in _INDEXED:
        indices = [index for index in args[1] if index is not None]
        if any(type(index) is DeviceTensor and index.dtype in _OF_A_MASK for index in indices):
            counts.reads[line()] += 1
        elif not all(type(index) is DeviceTensor for index in indices):
            counts.copies[line()] += 1
    elif not _TAGS.isdisjoint(func.tags):
        counts.reads[line()] += 1
    for stray in others:
        is_index = any(stray is index for index in indices)
        if (stray.dim() and not is_index) or (indices and stray is args[0]):
            raise StrayTensorError(
                f"{func}: expected all tensors on {DEVICE}, got one of {list(stray.shape)} on the CPU, made at "
                f"{getattr(stray, '_line', 'a line that was not noted')}"
            )


class _Lines(TorchDispatchMode):
    """Notes the line of `src/grouprl` that made a CPU tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not isinstance(result, DeviceTensor):
            result._line = line()
        return result


class _Module:
    """What torch asks the module of a device, `torch.pretend`."""

    available = False  # to what looks for an accelerator
    is_initialized = staticmethod(lambda: True)
    is_available = staticmethod(lambda: _Module.available)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: int(_Module.available))
    _is_in_bad_fork = staticmethod(lambda: False)
    synchronize = staticmethod(lambda *_: None)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])
    get_rng_state = staticmethod(lambda *_: torch.empty(0, dtype=torch.uint8))
    set_rng_state = staticmethod(lambda *_: None)


def _autocast(name: str, chosen: Callable[[list[torch.dtype]], torch.dtype]) -> None:
    """Makes autocast compute an operation in the dtype that is chosen from autocast's own and those of its tensors."""
    overloads = getattr(aten, name)
    for overload in overloads.overloads():
        func = getattr(overloads, overload)
        if func._schema.is_mutable or "out" in overload:
            continue

        def cast(*args: Any, func: Any = func, **kwargs: Any) -> Any:
            floats = [leaf.dtype for leaf in tree_leaves((args, kwargs)) if _is_float(leaf)]
            dtype = chosen([torch.get_autocast_dtype(NAME), *floats])
            with torch._C._ExcludeDispatchKeyGuard(_OF_AUTOCAST):
                args, kwargs = tree_map(lambda leaf: leaf.to(dtype) if _is_float(leaf) else leaf, (args, kwargs))
                return func(*args, **kwargs)

        _operations.impl(
            func._schema.name.partition("::")[2] + ("." + overload if overload != "default" else ""),
            cast,
            "AutocastPrivateUse1",
        )


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _moved(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of torch that makes a tensor of numbers, which torch does for this device below what Python sees."""

    def on_device(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        return make(*args, **kwargs).to(DEVICE) if _is_here(device) else make(*args, device=device, **kwargs)

    return on_device


_setup_privateuseone_for_python_backend(NAME, _Module())
DEVICE = torch.device(NAME, 0)
_OF_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_fallbacks, _operations = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_fallbacks.fallback(compute, "PrivateUse1")
_fallbacks.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
# As on a CPU: products in the lower dtype, and these three in the widest of their tensors.
for _name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "scaled_dot_product_attention"):
    _autocast(_name, itemgetter(0))
for _name in ("cat", "stack", "index_copy"):
    _autocast(_name, lambda dtypes: reduce(torch.promote_types, dtypes[1:] or dtypes))


@contextmanager
def pretended(*, noted: bool = False) -> Iterator[Counts]:
    """The device is there; counts anew. `noted`: errors name the line that made a tensor, in twice the time."""
    _device_constructors()  # torch keeps the functions that `torch.device` as a context changes: not those of here
    makers = torch.tensor, torch.as_tensor
    counts.reads.clear()
    counts.copies.clear()
    _Module.available = True
    # In all threads: those that compute gradients compute layers again.
    torch.tensor, torch.as_tensor = map(_moved, makers)
    try:
        with _Lines() if noted else nullcontext():
            yield counts
    finally:
        torch.tensor, torch.as_tensor = makers
        _Module.available = False


if __name__ == "__main__":  # `grouprl ARGUMENTS` on the device, for the ranks of torchrun
    from grouprl.cli import main
    from grouprl.forward.devices import DEVICES, DeviceTraits

    DEVICES[NAME] = DeviceTraits(has_float64=True, compares=False)
    with pretended():
        main()
