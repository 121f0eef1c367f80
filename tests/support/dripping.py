"""A server that drips: it takes nothing, and gives one byte every 0.05 s."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread


@contextmanager
def dripping(answer: bytes) -> Iterator[str]:
    """Its address; each connection has a thread of its own."""

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            for byte in answer:
                connection.send(bytes([byte]))
                time.sleep(0.05)

    def serve() -> None:
        with suppress(OSError):
            while True:
                Thread(target=drip, args=[listening.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
