"""The process: TLS, and leaving by signals."""

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import trustme

from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import chat


@contextlib.contextmanager
def process(*flags: str, url: str, verify: ssl.SSLContext | bool = True, **environ: str) -> Iterator[tuple]:
    port = free_port()
    command = [sys.executable, "-m", "hpkv", "serve", "--port", str(port), *flags]
    env = {"PATH": "/usr/bin:/bin", **environ}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as running:
        lines: list[bytes] = []
        reader = threading.Thread(target=lambda: lines.extend(running.stderr or ()))
        reader.start()
        try:
            with httpx2.Client(base_url=url.format(port=port), verify=verify, timeout=10) as client:
                wait_ready(client, running)
                yield running, client
        finally:
            running.kill()
            reader.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(client: httpx2.Client, running: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert running.poll() is None
        with contextlib.suppress(httpx2.TransportError):
            client.get("/health")
            return
        time.sleep(0.05)
    pytest.fail("the gateway did not start")


def test_sigterm_lets_streams_finish_and_refuses_new_ones() -> None:
    with FakeEngine() as engine:
        engine.speed.decode_interval_s = 0.03
        with process("--replica", engine.url, url="http://127.0.0.1:{port}") as (running, client):
            body = chat(max_tokens=40, stream=True)
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                chunks = answer.iter_raw()
                first = next(chunks)
                running.send_signal(signal.SIGTERM)
                time.sleep(0.3)
                ready = client.get("/readyz")
                refused = client.post("/v1/chat/completions", json=chat())
                rest = first + b"".join(chunks)
            assert (ready.status_code, ready.json()["status"]) == (503, "draining")
            assert refused.status_code == 503
            assert rest.endswith(b"data: [DONE]\n\n")
            assert running.wait(10) in (0, -signal.SIGTERM)


def test_the_grace_time_is_kept() -> None:
    with FakeEngine() as engine:
        engine.speed.decode_interval_s = 0.1
        grace = {"HPKV_SHUTDOWN__GRACE_S": "0.5"}
        with process("--replica", engine.url, url="http://127.0.0.1:{port}", **grace) as (running, client):
            body = chat(max_tokens=1000, stream=True)
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_raw())
                running.send_signal(signal.SIGTERM)
                running.wait(5)


def test_a_second_signal_leaves_at_once() -> None:
    with FakeEngine() as engine:
        engine.speed.decode_interval_s = 0.1
        with process("--replica", engine.url, url="http://127.0.0.1:{port}") as (running, client):
            body = chat(max_tokens=1000, stream=True)
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_raw())
                running.send_signal(signal.SIGINT)
                time.sleep(0.3)
                assert running.poll() is None
                running.send_signal(signal.SIGINT)
                running.wait(5)


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    tls = {
        "HPKV_LISTEN__TLS_CERT": str(tmp_path / "cert.pem"),
        "HPKV_LISTEN__TLS_KEY": str(tmp_path / "key.pem"),
    }
    with FakeEngine() as engine:
        url = "https://127.0.0.1:{port}"
        with process("--replica", engine.url, url=url, verify=trust, **tls) as (_, client):
            assert client.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 200


def test_a_taken_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "hpkv", "serve", "--port", str(port)]
        result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert result.returncode != 0
    assert b"address already in use" in result.stderr
