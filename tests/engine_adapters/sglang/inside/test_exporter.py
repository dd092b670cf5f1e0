"""Our metrics for SGLang: what Prometheus reads, also from the files that several processes write."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from cache.testing import PAGE_BYTES
from engine_adapters.metrics import Meter
from engine_adapters.sglang.inside.exporter import Exporter
from tests.cache.conftest import MakeRig, make_rig

__all__ = ["make_rig"]

RANK = {"model_name": "m", "tp_rank": "1"}
PROCESS = """
import sys
from pathlib import Path
from engine_adapters.metrics import Meter
from engine_adapters.sglang.inside.exporter import Exporter
from tests.cache.build import rig
made = rig(Path(sys.argv[1]))
made.store(0, 4)
assert made.tiers.drain(5)
for turn in range(2):  # as when storage is taken away and given back
    exporter = Exporter(Meter(made.tiers, 16, 1), {"tp_rank": sys.argv[2]})
    exporter.tell()
    exporter.close()
made.tiers.close()
"""


def test_a_thread_tells_what_has_grown(make_rig: MakeRig) -> None:
    rig = make_rig()
    registry = CollectorRegistry()
    exporter = Exporter(Meter(rig.tiers, 16, PAGE_BYTES), RANK, registry)
    rig.store(0, 4)
    assert rig.tiers.drain(5)
    wanted = {
        'hpkv_stored_tokens_total{model_name="m",tier="ssd",tp_rank="1"} 64.0',
        'hpkv_write_seconds_count{model_name="m",tier="ssd",tp_rank="1"} 4.0',
        'hpkv_open_tickets{model_name="m",tp_rank="1"} 0.0',
    }
    deadline = time.monotonic() + 30
    while not wanted <= set(generate_latest(registry).decode().splitlines()):
        assert time.monotonic() < deadline, generate_latest(registry).decode()
        time.sleep(0.05)
    exporter.close()


def test_ranks_are_told_apart_where_processes_share_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(files))
    for rank in "01":
        subprocess.run([sys.executable, "-c", PROCESS, str(tmp_path / rank), rank], check=True, timeout=60)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    for rank in "01":
        stored = registry.get_sample_value("hpkv_stored_tokens_total", {"tier": "ssd", "tp_rank": rank})
        assert stored == 2 * 64, "the second adds to the first"
        assert registry.get_sample_value("hpkv_open_tickets", {"tp_rank": rank}) == 0
