from pathlib import Path

from engine_adapters.settings import Tiers
from engine_adapters.tiers import parse_tiers
from engine_adapters.up import notices
from engine_adapters.up.gateway import Upstream
from engine_adapters.up.http import Prefixes
from gateway.tokenization.parity import Verdict


def test_tiers_are_named_with_how_to_change_them() -> None:
    told = notices.tiers(parse_tiers("host=512MiB,ssd=/x/kv:4GiB"))
    assert "gpu+host+ssd (host=512MiB,ssd=/x/kv:4GiB). --tiers (TIERS=)" in told
    assert "gpu (gpu)" in notices.tiers(Tiers())


def test_replicas_without_events_are_named() -> None:
    upstreams = [Upstream("a", "http://a", "ipc:///a", "ipc:///b"), Upstream("b", "http://b")]
    (told,) = notices.events(upstreams, Path("/x/hpkv.yaml"))
    assert told.startswith("Replica b names no KV events")
    assert "a copy of /x/hpkv.yaml" in told


def test_models_that_are_not_known_exactly_are_named() -> None:
    models = [Prefixes("m", Verdict.AGREES, True), Prefixes("n", "the folder has no tokenizer", True)]
    (told,) = notices.prompts(models)
    assert told == "Prompts of n: the folder has no tokenizer (`agrees` is well; see docs/tokenization.md)"
