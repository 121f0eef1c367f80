"""Connects to a Ray cluster, or starts one on this machine for as long as a run lasts."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from grouprl.config.run import ClusterConfig
from grouprl.ranks.ranks import Ranks
from grouprl.types import UserError, import_extra

_PROBE = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level='error'); ray.nodes()"
_PROBE_SECONDS = 60.0
_PREFIX = re.compile(r"^\[[^]]*\] [\w.]+:\d+: ")  # time, process and line of Ray's own messages
_STORE_BYTES = 1 << 30  # of shared memory for objects on a cluster that is started here; two versions of the weights
_SET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it would send statistics to its makers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors without GPUs keep what the machine shows them
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # it waits a minute for an address where nobody listens
}


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to."""

    ray: Any  # the module, connected
    settings: ClusterConfig
    say: Callable[[str], None]  # gets a sentence for each actor that is lost


class _ImportPath(list[str]):
    """What Ray adds to the paths of its workers: the current folder only where this process has it on its own path."""

    def extend(self, places: Iterable[str]) -> None:
        """Adds the places from which this process imports."""
        import_paths = {os.path.abspath(path) for path in sys.path}
        super().extend(path for path in places if path in import_paths)


@contextmanager
def open_cluster(settings: ClusterConfig, say: Callable[[str], None], ranks: Ranks) -> Iterator[Cluster]:
    """Connects to the cluster at `settings.address`, or starts one on this machine, which ends with the block.

    A cluster that is started here has no dashboard, and a token of its own that every connection must show. It
    listens on the machine's external address all the same: Ray takes no other. The token of an existing cluster is
    read by Ray, from RAY_AUTH_TOKEN or ~/.ray/auth_token.

    Raises:
        UserError: Ray is not installed, or there is no cluster of this version, or with this token, at the address.
    """
    if settings.max_staleness and ranks.world > 1:
        raise UserError(
            f"cluster.max_staleness: expected 0 with {ranks.world} ranks, got {settings.max_staleness}: set it to 0, "
            "or use one rank"
        )
    if settings.address is None and ranks.world > 1:
        raise UserError(
            f"cluster.address: expected the address of a cluster for {ranks.world} ranks, got none: start one with "
            "`ray start --head`, and name it"
        )
    before = {name: os.environ.get(name) for name in (*_SET, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    os.environ.update(_SET)
    if settings.address is None:
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    ray = import_extra("ray", "ray", "cluster.backend=ray")
    # Both were read when Ray was imported, which a program may have done before, or for an earlier cluster.
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
    try:
        job = ray.job_config.JobConfig()
        job._py_driver_sys_path = _ImportPath()
        if settings.address is not None:
            command = [sys.executable, "-P", "-c", _PROBE, settings.address]
            try:
                tried = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS, check=False
                )
                said, failed = tried.stderr, tried.returncode != 0
            except subprocess.TimeoutExpired:
                said, failed = f"no answer within {_PROBE_SECONDS:g} s", True
            if failed:
                lines = [_PREFIX.sub("", line.strip()) for line in said.splitlines() if line.strip()] or ["no reason"]
                reason = lines[-1][:120].rstrip(". ")
                raise UserError(
                    f"cluster.address: expected a Ray {ray.__version__} cluster at {settings.address} that takes this "
                    f"process and its token, got: {reason}. Start it with `ray start --head`, check address, version "
                    "and RAY_AUTH_TOKEN, or leave the address out to start a cluster here"
                )
            ray.init(address=settings.address, job_config=job, log_to_driver=False, logging_level="error")
        else:
            # More logical CPUs than cores are allowed: samplers and scorers take turns.
            needed = max(os.cpu_count() or 1, (settings.samplers + settings.scorers) * settings.cpus + 1)
            try:
                ray.init(
                    address="local",
                    job_config=job,
                    include_dashboard=False,
                    num_cpus=needed,
                    object_store_memory=_STORE_BYTES,
                    log_to_driver=False,
                    logging_level="error",
                )
            except Exception as error:  # Ray raises a plain Exception where it does not start in time
                reason = " ".join(str(error).split())[:200].rstrip(". ")
                raise UserError(
                    f"cluster.backend=ray: expected Ray to start here, got: {reason}. Free processors and memory, set "
                    "RAY_TMPDIR to a short path, or give cluster.address"
                ) from error
        yield Cluster(ray, settings, say)
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
