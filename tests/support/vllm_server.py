"""A server that answers as vLLM 0.32 does where GroupRL calls it, with transformers' own forward pass behind it.

Paths, fields and their meaning are those of vllm/entrypoints (rl/online, scale_out/token_in_token_out, serve/dev,
serve/lora, serve/tokenize, serve/middleware/authenticate.py) and of vllm/v1/sample. On top of that, it does on request
what a real server does rarely: 500, half a reply, another version, no ids, silence, a restart.
"""

from __future__ import annotations

import copy
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from grouprl.engines.vllm_worker import PublishedWeightsWorker
from grouprl.models.adapters import attach_adapter
from grouprl.models.load import load_model
from oracles import own_model

GUARDED = ("/v1", "/v2", "/inference", "/cohere")  # the paths that --api-key protects
# The fields of vLLM's SamplingParams that GroupRL may send; a real server refuses unknown ones.
KNOWN = {
    *("n", "seed", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos"),
    *("detokenize", "logprobs", "repetition_penalty"),
}
FLOOR = -9999.0


_model, _tokenizer = cache(own_model), cache(AutoTokenizer.from_pretrained)


@dataclass(frozen=True)
class Call:
    path: str
    number: int  # 0, 1, ... of this path
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    server: VllmServer


@dataclass(frozen=True)
class Reply:
    value: Any = None
    status: int = 200
    raw: bytes | None = None  # instead of the value
    seconds: float = 0.0  # before it is sent
    half: bool = False  # the connection ends in the middle
    lost: bool = False  # the connection is reset instead


Answer = Callable[[], Reply]  # what a real server replies
Fault = Callable[[Call, Answer], Reply]


class Worker(PublishedWeightsWorker):
    """vLLM's worker, as far as the extension uses it."""

    def __init__(
        self, model: PreTrainedModel, name: str, number: int, *, lora: bool, rows: int, logprobs_mode: str
    ) -> None:
        context = model.config.max_position_embeddings
        self.model, self.name, self.number, self.loras = model, name, number, dict[int, PreTrainedModel]()
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(
                model=name, hf_text_config=model.config, logprobs_mode=logprobs_mode, max_model_len=context
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=rows),
            lora_config=object() if lora else None,
            parallel_config=SimpleNamespace(data_parallel_size=1),
        )

    def get_model(self) -> PreTrainedModel:
        return self.model

    def add_lora(self, number: int, path: Path) -> None:
        base = load_model(self.name, device=torch.device("cpu"))
        base.load_state_dict(self.model.state_dict())
        self.loras[number] = attach_adapter(base, path)

    def list_loras(self) -> set[int]:
        return {*self.loras}

    def reload_weights(self, weights_iterator: Any, is_checkpoint_format: bool) -> None:
        assert is_checkpoint_format
        unknown = self.model.load_state_dict(dict(weights_iterator), strict=False).unexpected_keys
        assert not unknown, unknown

    def _repack_head(self) -> None:
        """There is nothing packed here."""


class VllmServer:
    """The server of one model folder, on loopback. A context manager; leaving it ends calls that hang."""

    def __init__(
        self,
        folder: Path,
        *,
        fault: Fault = lambda call, answer: answer(),
        token: str = "",
        lora: bool = False,
        rows: int = 64,
        logprobs_mode: str = "processed_logprobs",
        tokenizer: Path | None = None,
        workers: int = 1,
    ) -> None:
        """Of several workers, which a real server divides its model among, the first samples."""
        self.calls: list[Call] = []
        self.program = "0.32.0"
        self.fault = fault
        self._folder, self._token, self._workers = folder, token, workers
        self._options = {"lora": lora, "rows": rows, "logprobs_mode": logprobs_mode}
        self._tokenizer = _tokenizer(tokenizer or folder)
        self._lock, self._computing = threading.Lock(), threading.Lock()
        self._over, self._resumed = threading.Event(), threading.Event()
        self.forget()
        self._listen(0)

    def forget(self) -> None:
        """The state of a server that has just started."""
        model, options = _model(self._folder), self._options
        self.workers = [
            Worker(copy.deepcopy(model), str(self._folder), number, **options)  # type: ignore[arg-type]
            for number in range(self._workers)
        ]
        self.worker = self.workers[0]
        self.version, self.resets, self.adapters = "default", 0, dict[str, int]()
        self._numbers = count(1)
        self._resumed.set()

    def _listen(self, port: int) -> None:
        self._http = _Http(("127.0.0.1", port), type("Handler", (_Handler,), {"vllm": self}))
        self._port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def kill(self, *, seconds: float = 0.2) -> None:
        """Ends the server, whose calls are lost; a new one listens at the same place after some seconds."""
        self._close()
        time.sleep(seconds)
        self.forget()
        self._listen(self._port)

    def _close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._http.drop()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def asked(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._over.set()
        self._resumed.set()
        self._close()

    # What it answers

    def reply(self, method: str, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        place = urlsplit(url)
        body = json.loads(content) if content else {}
        with self._lock:
            number = Counter(call.path for call in self.calls)[place.path]
            call = Call(place.path, number, headers, body, self)
            self.calls.append(call)
        if self._token and place.path.startswith(GUARDED) and headers.get("Authorization") != f"Bearer {self._token}":
            return Reply({"error": "Unauthorized"}, 401)
        reply = self.fault(call, partial(self.answer, method, call))
        self._over.wait(reply.seconds)
        return reply

    def answer(self, method: str, call: Call) -> Reply:
        match method, call.path:
            case "GET", "/v1/models":
                names = [self.worker.name, *self.adapters]
                return Reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})
            case "GET", "/version":
                return Reply({"version": self.program})
            case "GET", "/weight_info":
                return Reply({"weight_version": self.version})
            case "POST", "/detokenize":
                return Reply({"prompt": self._tokenizer.decode(call.body["tokens"])})
            case "POST", "/pause":
                self._resumed.clear()
                return Reply({"status": "paused"})
            case "POST", "/resume":
                self._resumed.set()
                return Reply({"status": "resumed"})
            case "POST", "/collective_rpc":
                methods = [getattr(worker, call.body["method"]) for worker in self.workers]
                with self._computing:
                    return Reply({"results": [method(*call.body.get("args", [])) for method in methods]})
            case "POST", "/reset_prefix_cache":
                self.resets += 1
                return Reply({"success": True})
            case "POST", "/update_weight_version":
                self.version = call.body["new_version"]
                return Reply({"success": True, "new_version": self.version})
            case "POST", "/v1/load_lora_adapter":
                number = self.adapters.setdefault(call.body["lora_name"], next(self._numbers))
                for worker in self.workers:
                    worker.add_lora(number, Path(call.body["lora_path"]))
                return Reply(raw=b"Success: LoRA adapter added successfully.")
            case "POST", "/v1/unload_lora_adapter":
                number = self.adapters.pop(call.body["lora_name"])
                for worker in self.workers:
                    worker.loras.pop(number, None)
                return Reply(raw=b"Success: LoRA adapter removed successfully.")
            case "POST", "/inference/v1/generate":
                return self._generate(call.body)
        return Reply({"detail": "Not Found"}, 404)

    def _generate(self, body: Mapping[str, Any]) -> Reply:
        parameters, name = body["sampling_params"], body.get("model") or self.worker.name
        assert set(parameters) <= KNOWN
        assert not parameters["stop"] or parameters["detokenize"]
        if name != self.worker.name and name not in self.adapters:
            return Reply({"error": {"message": f"The model `{name}` does not exist.", "code": 404}}, 404)
        self._resumed.wait(10)
        with self._computing:
            version = self.version
            model = self.worker.loras.get(self.adapters.get(name, 0), self.worker.model)
            rows = self._sample(model, body["token_ids"], parameters)
        choices = [
            {
                "index": index,
                "finish_reason": finish,
                "stop_reason": stop,
                "token_ids": ids,
                "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
                "logprobs": {
                    "content": [
                        {"token_id": one, "logprob": max(value, FLOOR), "rank": 1, "top_logprobs": []}
                        for one, value in zip(ids, values, strict=True)
                    ]
                },
            }
            for index, (ids, values, finish, stop) in enumerate(rows)
        ]
        return Reply({"request_id": "generate-tokens-0", "model": name, "choices": choices, "usage": {}})

    @torch.no_grad()
    def _sample(
        self, model: PreTrainedModel, prompt: Sequence[int], given: Mapping[str, Any]
    ) -> list[tuple[list[int], list[float], str, int | str | None]]:
        """vLLM's sampling: child i draws with seed + i, as the smallest of exponential numbers over probabilities."""
        generators = [torch.Generator().manual_seed(given["seed"] + child) for child in range(given["n"])]
        rows: list[list[int]] = [[] for _ in generators]
        values: list[list[float]] = [[] for _ in generators]
        ends: dict[int, tuple[str, int | str | None]] = {}
        # The longest row of a server is its context: it is cut there without an error.
        most = min(given["max_tokens"], model.config.max_position_embeddings - len(prompt))
        for step in range(most):
            going = [child for child in range(given["n"]) if child not in ends]
            if not going:
                break
            ids = torch.tensor([[*prompt, *rows[child]] for child in going])
            logits = _own_forward(model, ids)
            for child, row in zip(going, logits.float(), strict=True):
                if given["temperature"] < 1e-5:
                    logprobs, token = row.log_softmax(-1), int(row.argmax())
                else:
                    logprobs = _processed(_penalized(row, given, {*prompt, *rows[child]}), given).log_softmax(-1)
                    noise = torch.empty_like(logprobs).exponential_(generator=generators[child])
                    token = int((logprobs.exp() / noise).argmax())
                rows[child].append(token)
                values[child].append(float(logprobs[token]))
                text = self._tokenizer.decode(rows[child], skip_special_tokens=True)
                found = next((stop for stop in given["stop"] if stop in text), None)
                if token in given["stop_token_ids"]:
                    ends[child] = ("stop", token)
                elif found is not None:
                    ends[child] = ("stop", found)
                elif step + 1 == most:
                    ends[child] = ("length", None)
        return [(rows[child], values[child], *ends[child]) for child in range(given["n"])]


def _own_forward(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """[N, V] logits after the last token, by transformers' own attention."""
    if model.config._attn_implementation != "eager":
        model.set_attn_implementation("eager")
    logits: Tensor = model(ids, use_cache=False, logits_to_keep=1).logits[:, -1]
    return logits


def _penalized(row: Tensor, given: Mapping[str, Any], before: set[int]) -> Tensor:
    """vLLM's penalty: of the tokens of prompt and completion, before the temperature."""
    factor, row = given.get("repetition_penalty", 1.0), row.clone()
    for token in before:
        row[token] *= factor if row[token] <= 0 else 1 / factor
    return row


def _processed(row: Tensor, given: Mapping[str, Any]) -> Tensor:
    """vLLM's order: temperature, min_p, top_k, top_p."""
    row = row / given["temperature"]
    probabilities = row.softmax(-1)
    row = row.masked_fill(probabilities < given["min_p"] * probabilities.max(), -torch.inf)
    if given["top_k"]:
        row = row.masked_fill(row < row.topk(given["top_k"]).values[-1], -torch.inf)
    if given["top_p"] < 1:
        ordered, places = row.sort()
        cut = ordered.softmax(-1).cumsum(-1) <= 1 - given["top_p"]
        cut[-1] = False
        row = row.masked_fill(torch.zeros_like(cut).scatter(0, places, cut), -torch.inf)
    return row


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *given: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def drop(self) -> None:
        """Resets every connection, as the end of a process does."""
        for connection in self._open:
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    vllm: VllmServer

    def do_GET(self) -> None:
        self._send(self.vllm.reply("GET", self.path, dict(self.headers), b""))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._send(self.vllm.reply("POST", self.path, dict(self.headers), content))

    def _send(self, reply: Reply) -> None:
        if reply.lost:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            for end in (self.rfile, self.wfile, self.connection):
                end.close()
            return
        content = json.dumps(reply.value).encode() if reply.raw is None else reply.raw
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if reply.half:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the standard library's name
        """Nothing."""
