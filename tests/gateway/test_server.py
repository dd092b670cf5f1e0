"""The process: TLS, and leaving by signals."""

import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import trustme

from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import chat
from tests.serving import Serving, serving


def test_sigterm_lets_streams_finish_and_refuses_new_ones() -> None:
    with FakeEngine() as engine:
        engine.speed.decode_interval_s = 0.05
        with serving("--replica", engine.url) as served:
            body = chat(max_tokens=2000, stream=True)
            with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                chunks = answer.iter_raw()
                first = next(chunks)
                served.process.send_signal(signal.SIGTERM)
                until_draining(served)
                refused = served.client.post("/v1/chat/completions", json=chat())
                engine.speed.decode_interval_s = 0  # all has been asked: the answer may come to its end
                rest = first + b"".join(chunks)
            assert refused.status_code == 503
            assert rest.endswith(b"data: [DONE]\n\n")
            assert served.process.wait(20) in (0, -signal.SIGTERM)


def until_draining(served: Serving) -> None:
    deadline = time.monotonic() + 20
    while True:
        ready = served.client.get("/readyz")
        if ready.status_code == 503:
            assert ready.json()["status"] == "draining"
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_grace_time_is_kept() -> None:
    with FakeEngine() as engine:
        engine.speed.decode_interval_s = 0.1
        grace = {"HPKV_SHUTDOWN__GRACE_S": "0.5"}
        with serving("--replica", engine.url, **grace) as served:
            body = chat(max_tokens=1000, stream=True)
            with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_raw())
                served.process.send_signal(signal.SIGTERM)
                served.process.wait(20)  # the answer takes 100 s


def test_a_second_signal_leaves_at_once() -> None:
    with FakeEngine() as engine:
        engine.speed.decode_interval_s = 0.1
        with serving("--replica", engine.url) as served:
            body = chat(max_tokens=1000, stream=True)
            with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_raw())
                served.process.send_signal(signal.SIGINT)
                until_draining(served)
                assert served.process.poll() is None
                served.process.send_signal(signal.SIGINT)
                served.process.wait(5)


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
    with (
        FakeEngine() as engine,
        serving("--replica", engine.url, scheme="https", verify=trust, **tls) as served,
    ):
        assert served.client.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 200


def test_a_taken_port_is_a_clear_error_and_no_replica_a_clear_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "hpkv", "serve", "--port", str(port)]
        result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert result.returncode != 0
    assert b"address already in use" in result.stderr
    assert b"the gateway has no replica" in result.stderr
