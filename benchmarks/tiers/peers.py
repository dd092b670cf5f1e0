"""Others' file-system tiers as contenders.

They import torch and much else, but of it they use little: each runs in vLLM's CPU environment with its own
package, and the few that it imports, laid beside it.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import PeerMissing
from benchmarks.report import Report
from benchmarks.servers import HOME
from benchmarks.tiers.contender import Contender

PEERS = {
    "vllm": "vLLM's file-system tier",
    "lmcache": "LMCache fs, O_DIRECT",
    "hicache": "SGLang's HiCacheFile",
}
VLLM = HOME / "envs" / "vllm" / "bin" / "python"
REQUIREMENTS = Path(__file__).parents[1] / "peers"


def start(report: Report, folder: Path, names: Sequence[str] = tuple(PEERS)) -> dict[str, Contender]:
    """Those that run here; why one doesn't is noted."""
    running = {}
    for name in names:
        title = PEERS[name]
        script = Path(__file__).parent / f"peer_{name}.py"
        try:
            running[name] = Contender(title, VLLM, script, folder / name, _environment(name))
        except (PeerMissing, RuntimeError) as error:
            report.note(f"{title} was not measured: {error}")
    return running


def _environment(name: str) -> dict[str, str]:
    """Where the peer finds its packages and this one."""
    if not VLLM.exists():
        raise PeerMissing("vLLM's environment isn't there: make engine-vllm")
    requirements = REQUIREMENTS / f"{name}.txt"
    paths = [str(Path(__file__).parents[2])]
    if requirements.exists():
        paths.append(str(_laid_out(requirements, HOME / "envs" / "peers" / name)))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "VLLM_NO_USAGE_STATS": "1"}


def _laid_out(requirements: Path, folder: Path) -> Path:
    """The packages of a list, without what they require."""
    stamp, wanted = folder / ".made", requirements.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
        made = subprocess.run(
            [*command, "--target", str(folder), "-r", str(requirements)],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise PeerMissing(f"it doesn't install: {made.stderr.strip().splitlines()[-1]}")
        stamp.write_text(wanted)
    return folder
