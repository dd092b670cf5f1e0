"""A way to an HTTP server on which answers are delayed, replaced, cut short or lost."""

import contextlib
import socket
import threading
import time
from collections import Counter

_ERROR = "HTTP/1.1 {status} Trouble\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Proxy:
    """Passes whole requests on, one a connection. `fault` says what becomes of their answers:

    "": nothing; "500", "503": an error in their place; "slow": they come after `delay`; "truncated": half of
    the body, then the end; "cut": the connection ends without an answer.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.fault = ""
        self.delay = 1.0
        self.requests = Counter[str]()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            request = _message(client)
            self.requests[request.split(b" ", 1)[0].decode()] += 1
            fault = self.fault
            if fault.isdigit():
                client.sendall(_ERROR.format(status=fault).encode())
                return
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                server.sendall(_closing(request))
                answer = b"".join(iter(lambda: server.recv(1 << 16), b""))
            if fault == "slow":
                time.sleep(self.delay)
            if fault == "truncated":
                answer = answer[: len(answer) - len(answer.partition(b"\r\n\r\n")[2]) // 2]
            if fault != "cut":
                client.sendall(answer)


def _message(sender: socket.socket) -> bytes:
    """A whole request: its head, and as much body as that says."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := sender.recv(1 << 16))
        if not more:
            raise ConnectionError
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0].partition(b":")[2]) - len(body) if lengths else 0
    while missing > 0:
        data += (more := sender.recv(1 << 16))
        if not more:
            raise ConnectionError
        missing -= len(more)
    return data


def _closing(request: bytes) -> bytes:
    """The request, asking the server to end the connection with its answer."""
    line, _, rest = request.partition(b"\r\n")
    return line + b"\r\nconnection: close\r\n" + rest
