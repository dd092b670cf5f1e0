"""The storage backend as SGLang attaches, detaches and ends it."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from engine_adapters.agent import report
from engine_adapters.sglang.flags import BACKEND
from engine_adapters.sglang.inside import identity, plugin, pool
from tests.cache.build import wait_for
from tests.engine_adapters.sglang.inside.fake import PAGE, install
from tests.engine_adapters.sglang.inside.test_shelf import BASE, BYTES
from tests.fakes.lessor import Gateway


class HiCacheStorage:
    """SGLang's base of all backends."""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our backend's class, as it is inside SGLang."""
    arguments = {"served_model_name": "m", "enable_metrics": False, "device": "cpu", "kv_events_config": None}
    install(monkeypatch, **arguments)
    modules = {"sglang.srt.mem_cache.hicache_storage": HiCacheStorage, "sglang.version": None}
    for name, base in modules.items():
        module = ModuleType(name)
        vars(module).update({"HiCacheStorage": base, "__version__": "0"})
        monkeypatch.setitem(sys.modules, name, module)
    name = "engine_adapters.sglang.inside.storage"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(identity, "base", lambda *_: BASE)
    monkeypatch.setattr(pool, "page_bytes", lambda _: BYTES)
    plugin.loaded.set()
    made = importlib.import_module(name).HpkvStorage
    yield made
    made.leave_gateway()
    plugin.loaded.clear()
    sys.modules.pop(name)


@pytest.fixture
def lessor() -> Iterator[Gateway]:
    with contextlib.closing(Gateway()) as made:
        yield made


def attached(storage: Any, folder: Path, lessor: Gateway, **more: Any) -> Any:
    """A backend of the engine's first rank, its tiers open."""
    extra = {
        **BACKEND,
        "host": "1GB",
        "ssd": {"path": str(folder / "ssd"), "cap": "16MiB", "free_floor": 0},
        "agent": {"bind": f"ipc://{folder}/agent"},
        "gateway": {"url": lessor.url, "replica_url": "http://gpu1:30000"},
        **more,
    }
    ranks = {"tp_rank": 0, "pp_rank": 0, "dp_rank": 0}
    made = storage(SimpleNamespace(extra_config=extra, **ranks), {})
    made.register_mem_pool_host(SimpleNamespace(page_size=PAGE))
    return made


def test_an_engine_stays_at_the_gateway_while_its_storage_is_detached(
    storage: Any, tmp_path: Path, lessor: Gateway
) -> None:
    attached(storage, tmp_path, lessor).close()
    wait_for(lambda: len(lessor.heard) >= 3)  # a lease of 0.3 s is renewed
    again = attached(storage, tmp_path, lessor)
    before = len(lessor.heard)
    wait_for(lambda: len(lessor.heard) >= before + 2)
    assert {(one.method, one.body["url"]) for one in lessor.heard} == {("POST", "http://gpu1:30000")}
    again.close()
    storage.leave_gateway()
    assert [one.method for one in lessor.heard].count("DELETE") == 1
    assert lessor.heard[-1].method == "DELETE"


def test_another_place_is_taken_when_storage_is_attached_otherwise(
    storage: Any, tmp_path: Path, lessor: Gateway
) -> None:
    attached(storage, tmp_path, lessor).close()
    wait_for(lambda: bool(lessor.heard))
    elsewhere = {"url": lessor.url, "replica_url": "http://gpu2:30000"}
    attached(storage, tmp_path, lessor, gateway=elsewhere).close()
    wait_for(
        lambda: lessor.heard[-1].method == "POST" and lessor.heard[-1].body["url"] == "http://gpu2:30000"
    )
    assert [one.method for one in lessor.heard].count("DELETE") == 1


def test_replaced_weights_leave_tiers_that_nothing_is_loaded_from(
    storage: Any, tmp_path: Path, lessor: Gateway
) -> None:
    made = attached(storage, tmp_path, lessor)
    try:
        rates = []
        for _ in range(2):
            facts = made._inside.facts()
            said = report.identity(facts, made.tiers, 1), report.statistics(facts, made.tiers)
            rates.append([one.tiers["ssd"].tokens_per_s for one in said])
            made.retire()
        assert min(rates[0]) > 0
        assert rates[1] == [0, 0]
    finally:
        made.close()
