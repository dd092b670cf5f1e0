"""Others' file-system tiers, each in its own environment, as contenders."""

from pathlib import Path

from benchmarks.peers import PeerMissing, peer
from benchmarks.report import Report
from benchmarks.tiers.contender import Contender

PEERS = {
    "vllm": "vLLM's file-system tier",
    "lmcache": "LMCache fs, O_DIRECT",
    "sglang": "SGLang's HiCacheFile",
}


def start(report: Report, folder: Path) -> dict[str, Contender]:
    """Those that run here; why one doesn't is noted."""
    running = {}
    for name, title in PEERS.items():
        script = Path(__file__).parent / f"peer_{name}.py"
        try:
            running[name] = Contender(title, peer(f"{name}-tier") / "python", script, folder / name)
        except (PeerMissing, RuntimeError, OSError) as error:
            report.note(f"{title} was not measured: {error}")
    return running
