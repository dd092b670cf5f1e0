"""SGLang's own rendering without an engine, in a process of its environment."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.tokenization import EngineRefused
from tests.gateway.tokenization.front_end import HOME

PYTHON = HOME / "envs/sglang/bin/python"
RENDER = Path(__file__).with_name("sglang_render.py")


class SglangFrontEnd:
    """A client of one; as an `EngineCall`, and without waiting for it in a coroutine."""

    def __init__(self, folder: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self.folder = folder
        self._process = process
        self._log = log
        assert self._read() == {"ready": True}

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.post(path, body)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer's JSON. Raises EngineRefused."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([path, body]) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "refused" in answer:
            raise EngineRefused(path, 400)
        return answer

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()[-3000:]
        return json.loads(line)


@contextlib.contextmanager
def sglang_front_end(folder: str, log: Path, **flags: Any) -> Iterator[SglangFrontEnd]:
    """Start one for a model folder, with these server arguments, and stop it at the end."""
    command = [str(PYTHON), "-P", str(RENDER), folder, json.dumps(flags)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, text=True
        ) as process,
    ):
        try:
            yield SglangFrontEnd(folder, process, log)
        finally:
            process.terminate()
