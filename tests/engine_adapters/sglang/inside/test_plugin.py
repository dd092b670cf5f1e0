"""What the hooks do with what SGLang tells them."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from engine_adapters.errors import SettingsError
from engine_adapters.prefills import LEAST_TOKENS, Prefills
from engine_adapters.sglang.flags import BACKEND
from engine_adapters.sglang.inside import plugin
from engine_adapters.sglang.inside.carrier import Carrier
from engine_adapters.sglang.inside.desk import Desk, Fetch
from engine_adapters.sglang.inside.names import Names
from tests.engine_adapters.sglang.inside.fake import (
    PAGE,
    Cache,
    CacheRequestHandle,
    RadixKey,
    hashes,
    install,
)

TOKENS = array("q", range(1, 2 * PAGE + 1))
REQUEST = CacheRequestHandle("r", 1)
LORA = "0123456789abcdef" * 2


class Backend:
    """As much of HpkvStorage as hooks know."""

    def __init__(self) -> None:
        self.names = Names(PAGE)
        self.desk: Desk | None = Desk()
        self.cache = Cache()
        self.prefills = Prefills(lambda: 102.0)
        self.tiers = self
        self.seen: list[tuple[int, float]] = []
        self.retired = False
        self.at_gateway = True
        self.settings = SimpleNamespace(token_threshold=0)
        self.touched: list[str] = []

    def touch(self, keys: Sequence[str]) -> None:
        self.touched += keys

    def heed(self, stop: object) -> None:
        pass

    def leave_gateway(self) -> None:
        self.at_gateway = False

    def carrier(self, cache: Any) -> Carrier:
        return Carrier(self.cache, None)

    def retire(self) -> None:
        self.retired = True

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        self.seen.append((tokens, seconds))


class TreeCore:
    """One node, which a request with an extra key and a salt has made."""

    def __init__(self, extra_key: str | None, salt: str | None) -> None:
        self.key = RadixKey(TOKENS, extra_key, salt)

    def prefetch_anchor_info(self, node: int) -> tuple[str | None, str | None]:
        return self.key.extra_key, self.key.cache_salt

    def build_storage_backup_spec(self, node: int, prefix: bool) -> Any:
        return SimpleNamespace(hash_value=hashes(self.key, None, PAGE), token_ids=TOKENS, prefix_keys=[])


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    made = Backend()
    module = ModuleType("engine_adapters.sglang.inside.storage")
    storage = SimpleNamespace(current=made, leave_gateway=made.leave_gateway)
    monkeypatch.setattr(module, "HpkvStorage", storage, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield made
    if made.desk is not None:
        made.desk.close()


def done(extra_key: str | None, salt: str | None = None) -> list[str]:
    """What SGLang does to the pages of such requests, once the hooks have had their say."""
    cache = SimpleNamespace(tree_core=TreeCore(extra_key, salt), page_size=PAGE)
    calls: list[str] = []

    def write(cache: Any, node: int) -> None:
        calls.append("store")

    def look(cache: Any, *args: Any, **more: Any) -> None:
        calls.append("load")

    plugin.back_up(write, cache, 7)
    plugin.fetch(look, cache, REQUEST, 7, TOKENS, extra_key=extra_key, cache_salt=salt)
    return calls


@pytest.mark.parametrize("enabled", [{"enable_lora": True}, {"lora_paths": ["a=b"]}])
def test_a_loras_pages_are_neither_stored_nor_loaded(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, enabled: dict[str, Any]
) -> None:
    install(monkeypatch, **enabled)
    assert done(LORA) == done(f"a client's{LORA}") == []
    assert done(None) == done("a client's") == ["store", "load"]


def test_without_loras_extra_keys_are_clients_own(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    install(monkeypatch)
    assert done(LORA) == ["store", "load"]


@pytest.mark.parametrize(
    ("threshold", "taken"), [(0, PAGE), (PAGE - 1, PAGE), (PAGE, PAGE), (PAGE + 1, PAGE + 1)]
)
def test_a_threshold_below_a_page_is_a_page(backend: Backend, threshold: int, taken: int) -> None:
    backend.settings.token_threshold = threshold
    controller = SimpleNamespace(prefetch_threshold=256, storage_stop_event=None)
    cache = SimpleNamespace(enable_storage=True, cache_controller=controller, page_size=PAGE)
    plugin.turn_on(None, SimpleNamespace(_cache=cache))
    assert cache.prefetch_threshold == controller.prefetch_threshold == taken


def test_others_storage_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, enable_lora=True)
    module = ModuleType("engine_adapters.sglang.inside.storage")
    module.HpkvStorage = SimpleNamespace(current=None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert done(LORA) == ["store", "load"]


def test_names_are_noted_on_both_ways(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    install(monkeypatch)
    done(None, "salt")
    keys = hashes(RadixKey(TOKENS, None, "salt"), None, PAGE)
    assert [backend.names.page(key).end_token for key in keys] == [PAGE, 2 * PAGE]


def test_what_sglang_has_itself_is_in_use_in_storage_too(
    monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    install(monkeypatch)
    cache = SimpleNamespace(tree_core=TreeCore(None, None), page_size=PAGE)
    matched, rest = TOKENS[: PAGE + 1], TOKENS[PAGE + 1 :]
    plugin.fetch(lambda *_, **__: None, cache, REQUEST, 7, rest, matched_prefix_tokens=matched)
    assert backend.touched == hashes(RadixKey(TOKENS, None, None), None, PAGE)[:1]


def test_a_hook_that_fails_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch)
    monkeypatch.setattr(Names, "note", lambda *_: 1 / 0)
    assert done(None) == ["store", "load"]
    assert caplog.text.count("ZeroDivisionError") == 2


def test_orders_travel_with_the_requests(backend: Backend) -> None:
    def sent(receiver: Any, requests: Any, own: list[Any]) -> list[Any]:
        return [*(requests or ()), *own]

    assert backend.desk is not None
    backend.desk.fetch(TOKENS, None, 2)
    request, abort, order = plugin.send_orders(sent, None, ["a request"], ["an abort"])
    assert (request, abort, order.tokens) == ("a request", "an abort", TOKENS)
    backend.desk.close()
    backend.desk = None  # on all ranks but the first
    assert plugin.send_orders(sent, None, None, None) == []


class Step(NamedTuple):
    extends: bool
    extend_num_tokens: int
    launch_ts: float = 100.0

    @property
    def forward_mode(self) -> Any:
        return SimpleNamespace(is_extend=lambda: self.extends)


def test_only_steps_that_compute_prompts_tell_how_fast_that_is(backend: Backend) -> None:
    for step in (Step(False, 1000), Step(True, LEAST_TOKENS - 1), Step(True, 1000)):
        backend.prefills = Prefills(lambda: 102.0)
        plugin.learn_prefill(None, None, step, None)
    assert backend.seen == [(1000, 2.0)]


def test_what_is_on_its_way_isnt_looked_up_again_but_waited_for(
    monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    install(monkeypatch)
    cache, asked = Cache(stored=2 * PAGE), []
    carrier = Carrier(cache, None)
    carrier.do(Fetch(1, TOKENS, None))
    monkeypatch.setattr(backend, "carrier", lambda _: carrier)

    def progress(cache: Any, request: CacheRequestHandle) -> bool:
        asked.append(request.rid)
        return False

    assert done(None) == ["store"]
    assert plugin.wait_for_joined(progress, cache, REQUEST) is False
    assert done(None, "salt") == ["store", "load"]
    assert plugin.wait_for_joined(progress, cache, CacheRequestHandle("other", 1)) is False
    assert asked == ["hpkv-prefetch-1", "other"]


class Ending:
    """A radix cache with pages that wait to be stored, when its engine ends."""

    def __init__(self, waiting: int, stuck: bool = False) -> None:
        self.ongoing_backup = dict.fromkeys(range(waiting))
        self.stuck = stuck
        self.left: int | None = None
        """How many waited when storage was taken away."""

    def drain_storage_control_queues_local(self) -> None:
        if not self.stuck:
            self.ongoing_backup.popitem()

    def shutdown(self) -> None:
        self.left = len(self.ongoing_backup)


def test_what_waits_is_stored_when_the_engine_ends(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    ending = Ending(waiting=3)
    plugin.end_storage(ending)
    assert (ending.left, backend.at_gateway) == (0, False)
    monkeypatch.setattr(plugin, "LAST_S", 0.01)
    hanging = Ending(waiting=3, stuck=True)
    plugin.end_storage(hanging)
    assert hanging.left == 3


def test_nothing_is_stored_or_loaded_once_weights_are_replaced(backend: Backend) -> None:
    try:
        plugin.retire(None, "a request")
        assert (backend.retired, plugin.reweighted.is_set()) == (True, True)
    finally:
        plugin.reweighted.clear()


GOOD = {**BACKEND, "host": "1GB", "ssd": {"path": "/data/kv", "cap": "4GiB"}}


def checked(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], **arguments: Any) -> None:
    """SGLang is about to check its arguments."""
    controller = SimpleNamespace(parse_storage_backend_extra_config=lambda _: (extra, 256, 1.0, 0.25, False))
    module = ModuleType("sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller")
    vars(module)["HybridCacheController"] = controller
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for parent in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.hybrid_cache"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    told = {
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config": "",
        "enable_hierarchical_cache": True,
        "hicache_host_memory_mode": "cache",
    }
    plugin.check_settings(SimpleNamespace(**{**told, **arguments}))


def test_what_would_leave_us_without_work_is_refused_before_a_model_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked(monkeypatch, GOOD)
    checked(monkeypatch, {}, hicache_storage_backend="file", enable_hierarchical_cache=False)
    with pytest.raises(SettingsError, match="add --enable-hierarchical-cache"):
        checked(monkeypatch, GOOD, enable_hierarchical_cache=False)
    with pytest.raises(SettingsError, match="buffer_only keeps nothing in host"):
        checked(monkeypatch, GOOD, hicache_host_memory_mode="buffer_only")
    with pytest.raises(SettingsError, match='lacks "interface_v1": 1'):
        checked(monkeypatch, {name: value for name, value in GOOD.items() if name != "interface_v1"})
