"""vLLM's own front end without an engine (`vllm launch render`): it renders and encodes as `vllm serve`."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2

from gateway.tokenization import EngineRefused
from tests.ports import free_port

HOME = Path(os.environ.get("HPKV_HOME", Path(__file__).parents[3] / ".hpkv"))
VLLM = HOME / "envs/vllm/bin/vllm"
SMOLLM2 = HOME / "models/SmolLM2-135M-Instruct"


class VllmFrontEnd:
    """A client of one; as an `EngineCall`, and without waiting for it in a coroutine."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=30)

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.post(path, body)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer's JSON.

        Raises:
            EngineRefused: its status is 400 or more.
        """
        answer = self._client.post(path, json=body)
        if answer.status_code >= 400:
            raise EngineRefused(path, answer.status_code)
        return answer.json()

    def serves(self) -> bool:
        """Whether it answers yet."""
        with contextlib.suppress(httpx2.TransportError):
            return self._client.get("/health").status_code == 200
        return False

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def vllm_front_end(folder: str, log: Path, *flags: str) -> Iterator[VllmFrontEnd]:
    """Start one for a model folder, and stop it at the end."""
    port = free_port()
    command = [
        VLLM,
        "launch",
        "render",
        folder,
        "--host=127.0.0.1",
        f"--port={port}",
        "--max-model-len=8192",
        *flags,
    ]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **quiet})
    front_end = VllmFrontEnd(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 90
        while not front_end.serves():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        yield front_end
    finally:
        front_end.close()
        process.terminate()
        process.wait(30)
