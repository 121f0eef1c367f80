"""A real vLLM server on loopback, in the environment that `make vllm-env` builds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from source_tree import ROOT

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
STARTS_WITHIN = 400.0  # seconds; 80 on two cores that nobody else uses
TOKEN = "a-token-of-the-tests"


class RealVllm:
    """The server of a model with the command of docs/scale.md. A context manager; no process of it stays."""

    def __init__(self, model: Path, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self.output = folder / "vllm.txt"
        self._model, self._folder = model, folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flags = (
            *("--model", self._model, "--host", "127.0.0.1", "--port", self._port, "--api-key", TOKEN),
            *("--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
            *("--worker-extension-cls", "grouprl.engines.vllm_worker.PublishedWeightsWorker"),
            *("--enable-lora", "--max-lora-rank", 16, "--dtype", "float32", "--enforce-eager", "--max-num-seqs", 64),
            "--no-enable-chunked-prefill",
        )
        own = {
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(self._folder),
            "XDG_CACHE_HOME": str(self._folder / "cache"),
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
        }
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *map(str, flags)]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command, env={**os.environ, **own}, stdout=output, stderr=output, start_new_session=True
            )

    def wait(self) -> float:
        """Waits until it serves; seconds."""
        started = time.monotonic()
        while time.monotonic() - started < STARTS_WITHIN:
            assert self._process is not None
            assert self._process.poll() is None, self.output.read_text()[-3000:]
            try:
                with urlopen(f"{self.address}/health", timeout=2):
                    return time.monotonic() - started
            except (URLError, OSError):
                time.sleep(0.5)
        raise AssertionError(self.output.read_text()[-3000:])

    def kill(self) -> None:
        """Kills the server and all its processes at once; its shared memory stays in /dev/shm."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def stop(self) -> None:
        """Ends the server in its own way, which frees its shared memory."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            with suppress(ProcessLookupError):  # all of its processes have ended
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.stop()
