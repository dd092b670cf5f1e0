"""A client on one keep-alive connection, with little of its own in what it times."""

import json
import socket
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

from benchmarks.servers import Server, ServerFailed


class Answer(NamedTuple):
    """An answer as it came; `seconds` from the request's first byte to its last."""

    seconds: float
    head: bytes
    body: bytes

    def header(self, name: str) -> str:
        """A header's value; empty where there is none."""
        for line in self.head.decode("latin-1").split("\r\n"):
            if line.lower().startswith(f"{name}:"):
                return line.partition(":")[2].strip()
        return ""


class Connection:
    """A context manager. Answers must have a content-length."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(("127.0.0.1", self._server.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def post(self, path: str, body: Any) -> Answer:
        """Send `body` as JSON. Raises ServerFailed unless it is answered with 200."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content
        start = time.perf_counter()
        self._socket.sendall(request)
        head_bytes, answer = self._receive()
        seconds = time.perf_counter() - start
        if not head_bytes.startswith(b"HTTP/1.1 200"):
            raise ServerFailed(f"{self._server.name}: {head_bytes[:40]!r} {answer[:300]!r}")
        return Answer(seconds, head_bytes, answer)

    def _receive(self) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(Answer(0, head, b"").header("content-length"))
        while len(body) < length:
            body += self._more()
        return head, body

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ServerFailed(f"{self._server.name} closed the connection")
        return data
