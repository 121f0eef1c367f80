"""A server that drips holds no client: every exchange has one deadline for the whole of it, headers and body."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from huggingface_hub import constants, hf_hub_download

from dripping import dripping
from grouprl.checks.judge_model.client import Meter, Server, ask
from grouprl.config.environment import EnvironmentConfig
from grouprl.config.run import EngineConfig
from grouprl.engines.vllm_client import VllmClient
from grouprl.environments.openenv import OpenEnvSource, _Session
from grouprl.models.names import BUNDLED
from grouprl.received import hub
from grouprl.tools.push import push
from grouprl.types import UserError

SECONDS = 0.6


def vllm(url: str) -> None:
    async def exchange() -> None:
        async with VllmClient(EngineConfig(name="vllm", address=url, seconds=SECONDS), url).connected() as connection:
            await connection.call("GET", "/version", what="its version")

    asyncio.run(exchange())


def judge(url: str) -> None:
    server = Server(f"{url}/v1", timeout=SECONDS, deadline=SECONDS, retries=0)
    (reply,) = ask(server, [{"model": "m"}], Meter())
    raise TimeoutError(str(reply))


def download(url: str) -> None:
    hub.end_exchanges()
    hf_hub_download("owner/name", "drips.json", endpoint=url)


def upload(url: str) -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(constants, "ENDPOINT", url)
        patches.setenv("HF_TOKEN", "hf_x")
        push(BUNDLED["abacus"], "owner/name")


EXCHANGES: dict[str, tuple[Callable[[str], Any], str]] = {
    "vllm": (vllm, r"expected its version \(GET /version\) within 0.6 s, got no reply"),
    "judge model": (judge, "no reply in time"),
    "environment": (
        lambda url: OpenEnvSource(url, EnvironmentConfig(tool_seconds=SECONDS)).ready(),
        "expected an OpenEnv .* server, got no whole reply within 0.6 s: start it",
    ),
    "episode": (lambda url: _Session(url, SECONDS), "timed out"),
    "file of the hub": (download, "no whole reply"),
    "upload to the hub": (upload, "no whole reply"),
}


@pytest.mark.parametrize("head", [b"", b"Content-Length: 400\r\n\r\n"], ids=["head", "body"])
@pytest.mark.parametrize("name", EXCHANGES)
def test_a_server_that_drips_holds_no_client(name: str, head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SECONDS", SECONDS)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    exchange, said = EXCHANGES[name]
    with dripping(b"HTTP/1.1 200 OK\r\nX-Long: " + head + b"x" * 400) as url:
        began = time.monotonic()
        with pytest.raises((UserError, OSError), match=said):
            exchange(url)
        assert time.monotonic() - began < 5
