"""The devices of the computation: one table of what differs between them, and the device of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grouprl.types import UserError

GPU = "cuda"
"""torch's name of the GPUs of NVIDIA and AMD, which `auto` takes where there is one."""


@dataclass(frozen=True)
class DeviceTraits:
    """What differs between types of devices; the defaults are those of an accelerator that nobody has described."""

    # On a CPU packs of 512 to 16,384 tokens are equally fast, because none fits the caches, and memory grows with them.
    # A GPU needs enough tokens to be busy. A whole group may exceed them: dividing it reads its prompt again.
    pack_tokens: int = 16384
    update_numbers: int = 1 << 22  # numbers of a weight that `RoundedAdamW` updates at once
    # Decode steps between two reads of the rows that ended. A read makes the host wait for the device; a row that ended
    # gets no more tokens and can stay until the next read.
    read_every: int = 8
    has_flex: bool = False  # whether flex_attention is compiled for it; others attend under dense masks
    has_graphs: bool = False  # whether decode steps are recorded as CUDA graphs
    has_paging: bool = False  # whether memory that is full moves to the machine's
    has_collectives: bool = False  # whether ranks add its tensors without copies on the CPU
    has_float64: bool = False  # sampled tokens are drawn in float64, on the CPU where the device has none
    has_generator: bool = False
    shares_memory: bool = False  # whether its memory is the machine's
    compares: bool = True  # whether a run compares its log-probs with the CPU's before it starts


DEVICES: dict[str, DeviceTraits] = {
    "cpu": DeviceTraits(
        pack_tokens=1024,
        update_numbers=1 << 17,
        read_every=1,
        has_collectives=True,
        has_float64=True,
        has_generator=True,
        shares_memory=True,
        compares=False,
    ),
    GPU: DeviceTraits(
        has_flex=True,
        has_graphs=True,
        has_paging=True,
        has_collectives=True,
        has_float64=True,
        has_generator=True,
        compares=False,
    ),
    "mps": DeviceTraits(has_generator=True, shares_memory=True),  # Apple's GPU; rehearsed, not run on a Mac
    "xpu": DeviceTraits(has_generator=True),  # Intel's GPU, of which some models compute no float64
}
"""By torch's names of the types."""


def traits_of(device_type: str) -> DeviceTraits:
    """What is known of a type of device."""
    return DEVICES.get(device_type, DeviceTraits())


def check_device(name: str) -> str:
    """The name of a device in a configuration, which may be of another machine.

    Raises:
        ValueError: torch knows no such device, or it computes nothing.
    """
    registered = torch.accelerator.current_accelerator()
    types = [*DEVICES, *([] if registered is None or registered.type in DEVICES else [registered.type])]
    kind, _, index = name.partition(":")
    if name == "auto" or name == "cpu" or (kind in types[1:] and (index.isdecimal() or kind == name)):
        return name
    near = f"; did you mean {GPU!r}?" if name.lower() in ("gpu", GPU, "rocm", "hip") else ""
    raise ValueError(f"expected auto, {', '.join(types)}, or one of several such as {GPU}:1{near}")


def accelerator() -> str | None:
    """The type of this machine's accelerator, as torch calls it; None = there is none."""
    if torch.cuda.is_available():
        return GPU
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


def device_type(name: str) -> str:
    """The type of a configuration's device: "auto" is a GPU that runs have used, else the CPU."""
    if name == "auto":
        return GPU if torch.cuda.is_available() else "cpu"
    return name.partition(":")[0]


def resolve_device(name: str, dtype: str = "float32") -> torch.device:
    """The device of a configuration.

    Raises:
        UserError: this machine lacks the device, or the device lacks the dtype.
    """
    device = torch.device(device_type(name) if name == "auto" else name)
    if device.type == "cpu":
        return device
    count = torch.get_device_module(device.type).device_count()
    if (device.index or 0) >= count:
        raise UserError(f"model.device: expected a GPU {name!r}, found {count}: use model.device=auto or cpu")
    if dtype == "bfloat16":
        try:
            number = torch.ones(1, 1, dtype=torch.bfloat16, device=device)
            number.mm(number)
        except (RuntimeError, TypeError) as error:
            raise UserError(
                f"model.dtype: expected a dtype that {device} multiplies, got bfloat16 ({error}): set float32"
            ) from error
    return device
