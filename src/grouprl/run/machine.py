"""Facts about this machine and process, for the record of a run; the dtype that is faster on it."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import torch
import transformers
from torch import Tensor

from grouprl.config.run import ModelConfig, RunConfig
from grouprl.forward.devices import resolve_device
from grouprl.forward.precision import faster_dtype
from grouprl.learner import Learner
from grouprl.models.shard import own_part


class HasModel(Protocol):
    """A configuration with a section `model`: of a run, or of supervised training."""

    @property
    def model(self) -> ModelConfig:
        """What is trained."""
        ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values."""
        ...


_Config = TypeVar("_Config", bound=HasModel)


def with_dtype(config: _Config, recorded: str | None = None) -> _Config:
    """Replaces model.dtype=auto by bfloat16 for such weights, by `recorded`, or else by the faster dtype here."""
    if config.model.dtype != "auto":
        return config
    dtype = recorded or faster_dtype(resolve_device(config.model.device))
    if isinstance(config, RunConfig) and config.model.weights != "float32":
        dtype = "bfloat16"
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})


def machine_facts(device: torch.device) -> dict[str, str | int]:
    """Returns processor, cores, versions and device, without which times and memory mean nothing."""
    module = torch.get_device_module(device)
    name = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    cpus = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": cpus[0] if cpus else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "device": name,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def peak_rss_mib() -> float:
    """Returns the largest memory that this process has had, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def networks_mib(learner: Learner) -> dict[str, float]:
    """Memory in MiB of each network's weights and each optimizer's moments; shared weights count once."""
    critic, own_critic = learner.critic, None if learner.critic is None else learner.critic.critic
    networks = {"policy": learner.policy, "reference": learner.reference, "critic": own_critic}
    optimizers = {"optimizer": learner.optimizer, **({} if critic is None else {"critic_optimizer": critic.optimizer})}
    counted: set[int] = set()
    shares = {}
    for name, network in networks.items():
        parts = [] if network is None else list(map(own_part, network.parameters()))
        uncounted = [part for part in parts if part.data_ptr() not in counted]
        counted |= {part.data_ptr() for part in uncounted}
        shares[name] = _mib(uncounted)
    shares |= {name: _mib(map(own_part, optimizer.moments().values())) for name, optimizer in optimizers.items()}
    return {name: share for name, share in shares.items() if share}


def _mib(parts: Iterable[Tensor]) -> float:
    return sum(part.numel() * part.element_size() for part in parts) / (1 << 20)
