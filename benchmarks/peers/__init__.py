"""Other systems, each in an environment of its own that is made when a benchmark first asks for it."""

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.servers import HOME


class PeerMissing(Exception):
    """A peer that does not install here; the message says why."""


def peer(name: str) -> Path:
    """The bin folder of the environment with what `benchmarks/peers/NAME.txt` lists."""
    folder = HOME / "envs" / "peers" / name
    requirements = Path(__file__).parent / f"{name}.txt"
    stamp = folder / ".made"
    wanted = requirements.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"making the environment of {name} ...", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
        made = subprocess.run([*pip, "-r", str(requirements)], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise PeerMissing(f"{name} does not install: {made.stderr.strip().splitlines()[-1]}")
        stamp.write_text(wanted, encoding="utf-8")
    return folder / "bin"
