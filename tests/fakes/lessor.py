"""As much of a gateway as a registration knows."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Heard(NamedTuple):
    method: str
    path: str
    key: str | None
    body: Any
    at: float


class Gateway:
    """Grants leases, or says what a test wants it to say."""

    def __init__(self, port: int = 0) -> None:
        self.heard: list[Heard] = []
        self.status = 200
        self.answer: Any = {"name": "gpu1:8001", "lease_s": 0.3}
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                said = json.loads(body) if body else None
                heard = Heard(self.command, self.path, self.headers["authorization"], said, time.monotonic())
                gateway.heard.append(heard)
                answer = json.dumps(gateway.answer).encode()
                self.send_response(gateway.status)
                self.send_header("location", f"http://127.0.0.1:{gateway.port}/elsewhere")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_DELETE(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/base"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
