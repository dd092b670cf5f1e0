from pathlib import Path
from typing import Any

import pytest

from cache import stores
from cache.policies import Always, Back, SecondTouch, Selective, Through
from cache.tiers.ssd.folder import Limits
from engine_adapters.errors import SettingsError
from engine_adapters.settings import Settings, load_settings

SSD = {"path": "/data/kv", "cap": "200GiB"}
FULL = {"host": "8GiB", "ssd": SSD, "shared": {"url": "s3://bucket/kv"}}


def load(configuration: dict[str, Any], **environ: str) -> Settings:
    return load_settings(
        configuration, environ, threshold_variable="VLLM_HPKV_TOKEN_THRESHOLD", engine_keys={"block_size"}
    )


@pytest.mark.parametrize(
    ("tiers", "mode"),
    [
        ((), "gpu"),
        (("host",), "gpu+host"),
        (("host", "ssd"), "gpu+host+ssd"),
        (("host", "shared"), "gpu+host+shared"),
        (("host", "ssd", "shared"), "gpu+host+ssd+shared"),
    ],
)
def test_the_tiers_that_are_on_make_the_mode(tiers: tuple[str, ...], mode: str) -> None:
    assert load({name: FULL[name] for name in tiers}).mode == mode


@pytest.mark.parametrize("below", ["ssd", "shared"])
def test_no_lower_tier_without_host(below: str) -> None:
    with pytest.raises(SettingsError, match=f"{below} loads through host memory: set host too"):
        load({below: FULL[below]})


def test_environment_beats_configuration() -> None:
    settings = load(
        FULL | {"token_threshold": 10, "load_s": 3},
        HPKV_CACHE__SSD__CAP="1TiB",
        HPKV_CACHE__LOAD_S="2.5",
        VLLM_HPKV_TOKEN_THRESHOLD="64",
        HPKV_CACHE__LOOK_S="",
    )
    assert settings.ssd is not None
    assert settings.ssd.path == Path("/data/kv")
    assert (settings.ssd.cap, settings.load_s, settings.token_threshold) == (1 << 40, 2.5, 64)
    assert settings.look_s == 0.05


def test_the_environment_alone_is_enough_and_the_configuration_stays_as_it_was() -> None:
    configuration: dict[str, Any] = {"ssd": dict(SSD)}
    settings = load(configuration, HPKV_CACHE__HOST="1GiB", HPKV_CACHE__SSD__PATH="/other")
    assert settings.host == 1 << 30
    assert configuration == {"ssd": SSD}


def test_the_engines_own_keys_pass() -> None:
    assert load({"block_size": 256}).mode == "gpu"


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"hots": "8GiB"}, r"^hots: no such setting; did you mean host\?"),
        ({"qqq": 1}, r"^qqq: no such setting \(known: agent, "),
        ({"host": "8GiB", "ssd": SSD | {"capp": 1}}, r"^ssd\.capp: no such setting; did you mean cap\?"),
        ({"host": "8GiB", "ssd": "/data/kv"}, r"^ssd: write a section with admission, path, cap, free_floor"),
        ({"host": "8GiB", "ssd": {"path": "/data/kv"}}, r"^ssd\.cap: Field required"),
        ({"host": "8GiB", "ssd": SSD | {"path": "kv"}}, r"^ssd\.path: kv depends on the engine's working"),
        ({"host": "8"}, r"^host: 8B is too small: a tier has 1MiB at the least"),
        ({"host": "8G"}, r"^host: '8G' is no size: write a number and a unit, such as 8GiB"),
        ({"host": True}, r"^host: True is no size"),
        ({"write": "thru"}, r"^write: .*'through', 'back' or 'selective'"),
        ({"token_threshold": -1}, r"^token_threshold: .*greater than or equal to 0"),
        ({"load_s": 0}, r"^load_s: .*greater than 0"),
        ({"load_s": "nan"}, r"^load_s: .*finite"),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(configuration: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(configuration)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"host": "8G", "load_s": -1})
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HPKV_CACHE__SSD__PAHT", "HPKV_CACHE__SSD__PATH"),
        ("HPKV_CACHE__TOKEN_THRESHOLD", "VLLM_HPKV_TOKEN_THRESHOLD"),
        ("VLLM_HPKV_THRESHOLD", "VLLM_HPKV_TOKEN_THRESHOLD"),
    ],
)
def test_an_unknown_variable_is_refused(name: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name}: no such variable; .*{meant}"):
        load({}, **{name: "1"})


def test_a_bad_value_from_the_environment_names_its_variable() -> None:
    with pytest.raises(SettingsError, match=r"^HPKV_CACHE__HOST: 'much' is no size"):
        load({}, HPKV_CACHE__HOST="much")
    with pytest.raises(SettingsError, match=r"^VLLM_HPKV_TOKEN_THRESHOLD: "):
        load({}, VLLM_HPKV_TOKEN_THRESHOLD="many")


def test_variables_of_others_pass() -> None:
    load({}, HPKV_HOME="/x", HPKV_UP_MODEL="m", VLLM_USE_V1="1", HPKV_LISTEN__PORT="1")


@pytest.mark.parametrize(
    "url",
    [
        "/mnt/kv",
        "file:///mnt/kv",
        "s3://bucket/kv?region=here",
        "gs://bucket",
        "az://container/kv",
    ],
)
def test_kinds_of_shared_stores(url: str) -> None:
    settings = load({"host": "1GiB", "shared": {"url": url}})
    assert settings.shared is not None
    assert settings.shared.url == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kv", "write a folder from / on"),
        ("s3:///", "write a folder from / on"),
        ("ftp://host/kv", "write a folder from / on"),
        ("s3://me:S3CRET@bucket/kv", "with a user or password in it: take them out"),
    ],
)
def test_shared_stores_that_cannot_be(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^shared\.url: .*{message}") as caught:
        load({"host": "1GiB", "shared": {"url": url}})
    assert "S3CRET" not in str(caught.value)


def test_the_agent_asks_for_keys_beyond_loopback(tmp_path: Path) -> None:
    for bind in ("tcp://127.0.0.1:7000", "tcp://localhost:7000", "ipc:///run/hpkv/agent"):
        assert load({"agent": {"bind": bind}}).agent.bind == bind
    for bind in ("tcp://*:7000", "tcp://10.0.0.1:7000", "tcp://127.0.0.1.example.org:7000"):
        with pytest.raises(SettingsError, match=r"agent: bind .* is reachable from other machines"):
            load({"agent": {"bind": bind}})
    file = tmp_path / "key"
    with pytest.raises(SettingsError, match=r"agent\.key_file: .*No such file"):
        load({"agent": {"key_file": str(file)}})
    file.write_text("x")
    with pytest.raises(SettingsError, match="key_file and clients_file go together"):
        load({"agent": {"key_file": str(file)}})
    load({"agent": {"bind": "tcp://*:7000", "key_file": str(file), "clients_file": str(file)}})


def test_the_agents_sockets_have_paths_that_can_be_bound(tmp_path: Path) -> None:
    longest = "/run/" + "x" * (107 - len("/run/.replay"))
    assert load({"agent": {"bind": f"ipc://{longest}"}}).agent.bind == f"ipc://{longest}"
    for path in (f"{longest}x", longest[:-1] + "ü"):
        with pytest.raises(SettingsError, match=r"^agent: bind .* is too long"):
            load({"agent": {"bind": f"ipc://{path}"}})


def test_settings_become_the_hierarchys() -> None:
    settings = load(
        FULL | {"token_threshold": 96, "write": "back", "load_s": 1, "look_s": 2, "hit_s": 3}
    ).hierarchy(32, 4096)
    assert (settings.page_tokens, settings.page_bytes, settings.threshold) == (32, 4096, 96)
    assert (settings.load_seconds, settings.look_seconds, settings.hit_seconds) == (1, 2, 3)
    for name, policy in (("through", Through), ("back", Back), ("selective", Selective)):
        assert isinstance(load({"write": name}).hierarchy(1, 1).write, policy)


def test_settings_become_the_stores() -> None:
    settings = load({"host": "1GiB", "ssd": SSD | {"admission": "second_touch", "free_floor": "5GB"}})
    assert settings.ssd is not None
    assert settings.ssd.limits() == Limits(cap=200 << 30, free_floor=5 * 10**9)
    assert isinstance(settings.ssd.admits(), SecondTouch)
    shared = load(FULL | {"shared": {"url": "/mnt/kv", "cap": "1TiB", "max_age_s": 60}}).shared
    assert shared is not None
    assert shared.limits() == stores.Limits(cap=1 << 40, age=60.0)
    assert isinstance(shared.admits(), Always)


def test_the_configuration_is_the_way_back() -> None:
    settings = load(FULL | {"token_threshold": 64, "pins": {"longest_s": 5}})
    assert settings.configuration() == {
        "host": "8GiB",
        "ssd": SSD,
        "shared": {"url": "s3://bucket/kv"},
        "token_threshold": 64,
        "pins": {"longest_s": 5.0},
    }
    assert load(settings.configuration()) == settings


@pytest.mark.parametrize(
    "url", ["gpu1:8001", "http://", "http://user@h:1", "http://h:99999", "ftp://h", "http://h/ä"]
)
def test_the_gateways_addresses_are_checked(url: str) -> None:
    good = {"url": "https://gateway/base/", "replica_url": "http://gpu1:8001"}
    settings = load({"gateway": good}).gateway
    assert settings is not None
    assert settings.url == "https://gateway/base"
    for field in good:
        with pytest.raises(SettingsError, match=rf"gateway\.{field}: write http://HOST:PORT"):
            load({"gateway": {**good, field: url}})
