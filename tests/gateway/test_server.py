"""The process: TLS, and leaving by signals."""

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import chat
from tests.serving import Serving, serving
from tests.waiting import until


@contextlib.contextmanager
def answering(**environ: str) -> Iterator[tuple[Serving, FakeEngine, Iterator[bytes]]]:
    """A gateway in the middle of an answer that takes 100 s more, and the answer's chunks from the second on.

    Whoever drops the chunks leaves the gateway, which then has nothing to wait for.
    """
    with FakeEngine() as engine:
        engine.speed.decode_interval_s = 0.1
        # Without prefixes: a process ends with its threads, and one could be loading a tokenizer.
        with serving("--replica", engine.url, "--policy", "round_robin", **environ) as served:
            body = chat(max_tokens=1000, stream=True)
            with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                chunks = answer.iter_raw()
                next(chunks)
                yield served, engine, chunks


def ready(served: Serving) -> Any:
    return served.client.get("/readyz").json()


def test_sigterm_lets_streams_finish_and_refuses_new_ones() -> None:
    with answering() as (served, engine, chunks):
        served.process.send_signal(signal.SIGTERM)
        until(lambda: ready(served)["status"] == "draining")
        assert served.client.get("/readyz").status_code == 503
        assert served.client.post("/v1/chat/completions", json=chat()).status_code == 503
        assert served.process.poll() is None
        engine.speed.decode_interval_s = 0  # all has been asked: the answer may come to its end
        assert b"".join(chunks).endswith(b"data: [DONE]\n\n")
        assert served.process.wait(20) in (0, -signal.SIGTERM)


def test_the_grace_time_is_kept() -> None:
    with answering(HPKV_SHUTDOWN__GRACE_S="0.5") as (served, _, chunks):
        started = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(20)
        assert time.monotonic() - started >= 0.5
        with pytest.raises(httpx2.RemoteProtocolError):
            list(chunks)


def test_a_second_signal_leaves_at_once() -> None:
    with answering() as (served, _, _chunks):
        served.process.send_signal(signal.SIGINT)
        until(lambda: ready(served)["status"] == "draining")
        time.sleep(0.5)
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


def test_a_taken_port_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "hpkv", "serve", "--port", str(port)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"hpkv: listen: 127.0.0.1:{port} can't be had (Address already in use): choose")
    assert (result.returncode, result.stdout) == (1, "")
