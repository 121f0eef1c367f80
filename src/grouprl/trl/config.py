"""GRPOConfig with the fields, types and defaults of TRL 1.16."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch
from transformers import TrainingArguments

from grouprl.forward.devices import resolve_device
from grouprl.tools.imported.keys import RENAMED, TRL, TRL_FIELDS
from grouprl.types import UserError, nearest_name

_KINDS: dict[str, Any] = {
    "bool": bool,
    "float": float,
    "int": int,
    "str": str,
    "dict": dict | str,  # on a command line JSON
    "list": list[float],
}


_RANKS = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}  # of torchrun and accelerate


def _field(name: str, kind: Any) -> tuple[str, Any, Any]:
    default = TRL[name].default
    return name, kind if default is not None else kind | None, dataclasses.field(default=default)


_Fields: Any = dataclasses.make_dataclass(
    "_Fields", [_field(name, _KINDS[kind]) for name, kind in TRL_FIELDS.items()], bases=(TrainingArguments,)
)


@dataclass(frozen=True)
class LaunchedProcesses:
    """What scripts ask accelerate for: the processes of the launcher."""

    num_processes: int
    process_index: int
    local_process_index: int

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the run."""
        return self.process_index == 0

    def wait_for_everyone(self) -> None:
        """Waits for nobody: the ranks of a run wait for one another."""

    def print(self, *words: object, end: str = "\n", flush: bool = False) -> None:
        """Prints in the process that writes the run alone."""
        if self.is_main_process:
            print(*words, end=end, flush=flush)

    def unwrap_model(self, model: Any) -> Any:
        """The model itself: it is not wrapped."""
        return model


class _Config(_Fields):  # type: ignore[misc]
    _n_gpu = 1

    def __init__(self, *values: Any, **settings: Any) -> None:
        names = {field.name for field in dataclasses.fields(self)}
        renamed = {RENAMED.get(key, key): value for key, value in settings.items()}
        self.older = {key: value for key, value in renamed.items() if key not in names}
        for key in self.older:
            if key not in TRL:
                near = nearest_name(key, names)
                raise UserError(
                    f"GRPOConfig: expected a field of TRL 1.16's, got {key}: "
                    + (f"did you mean {near}?" if near else "remove it, or add it here if a newer TRL has it")
                )
        super().__init__(*values, **{key: value for key, value in renamed.items() if key in names})

    def __post_init__(self) -> None:
        # Not that of transformers, which opens devices and process groups: a run opens its own.
        ranks = [int(os.environ.get(name, default)) for name, default in _RANKS.items()]
        self.distributed_state: LaunchedProcesses = LaunchedProcesses(*ranks)
        self.output_dir: str = os.path.expanduser(self.output_dir or "trainer_output")
        # What HfArgumentParser makes of these defaults.
        self.debug: Any = self.debug or ""
        self.include_num_input_tokens_seen: Any = self.include_num_input_tokens_seen or "no"
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Enum):
                setattr(self, field.name, value.value)
            elif isinstance(value, str) and value.startswith("{"):
                setattr(self, field.name, json.loads(value))

    @property
    def _setup_devices(self) -> torch.device:
        return resolve_device("cpu" if self.use_cpu else "auto")


class GRPOConfig(_Config):
    """All fields of TRL 1.16's GRPOConfig, with its defaults; an older name is accepted where the importer knows it.

    Raises:
        UserError: a name is no field; the error names the nearest one.
    """

    @property
    def named(self) -> dict[str, Any]:
        """The settings that differ from TRL's defaults, by TRL's names."""
        usual = _usual()
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(usual, name)} | self.older


@cache
def _usual() -> GRPOConfig:
    return GRPOConfig()
