"""Work that the end of the process doesn't wait for."""

import subprocess
import sys
import threading

import pytest

from gateway.tokenization.aside import aside

LEAVES = """
import asyncio, time
from gateway.tokenization.aside import aside

def hub():
    print("asking", flush=True)
    time.sleep(60)

async def main():
    task = asyncio.create_task(aside(hub))
    await asyncio.sleep(0.2)
    task.cancel()

asyncio.run(main())
"""


async def test_runs_elsewhere_and_tells() -> None:
    def fail() -> None:
        raise KeyError("x")

    assert await aside(threading.get_ident) != threading.get_ident()
    with pytest.raises(KeyError, match="x"):
        await aside(fail)


def test_the_process_ends_without_it() -> None:
    command = [sys.executable, "-c", LEAVES]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "asking\n", "")
