import re
import subprocess
from pathlib import Path

import pytest
import zmq

from gateway.settings import Settings, SettingsError, hash_key, load_settings

PUBLIC = zmq.curve_keypair()[0].decode()


def load(text: str, tmp_path: Path) -> Settings:
    file = tmp_path / "hpkv.yaml"
    file.write_text(text)
    return load_settings(file, environ={})


def test_flags_beat_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hpkv.yaml"
    file.write_text("{listen: {port: 1, host: localhost}, limits: {body_bytes: 11}}")
    monkeypatch.setenv("HPKV_LISTEN__PORT", "2")
    monkeypatch.setenv("HPKV_LIMITS__BODY_BYTES", "22")
    settings = load_settings(file, {"listen": {"port": 3}})
    assert settings.listen.port == 3
    assert settings.listen.host == "localhost"
    assert settings.limits.body_bytes == 22


def test_the_readmes_sample_works_as_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    sample, pasted = re.findall(r"```yaml\n(listen:.*?)```\n\n```sh\n(.*?)\n", readme, re.DOTALL)[0]
    subprocess.run(pasted, shell=True, cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    settings = load(sample, tmp_path)
    assert settings.access.api_keys == {hash_key((tmp_path / "api-keys").read_text().strip().encode())}
    assert settings.access.admin_keys == {hash_key((tmp_path / "admin-keys").read_text().strip().encode())}
    assert [replica.engine for replica in settings.replicas] == ["vllm", "sglang"]


def test_an_unknown_key_names_itself_and_its_nearest(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"listen\.prot: no such setting; did you mean port\?"):
        load("listen: {prot: 1}", tmp_path)
    with pytest.raises(SettingsError, match=r"replicas\.0\.engin: .* did you mean engine\?"):
        load("replicas: [{url: 'http://a', engin: vllm}]", tmp_path)
    with pytest.raises(SettingsError, match=r"routin: no such setting; did you mean routing\?"):
        load("routin: {}", tmp_path)


def test_an_unknown_variable_is_an_error_too() -> None:
    with pytest.raises(SettingsError, match=r"HPKV_LISTN__PORT: no such section; did you mean listen\?"):
        load_settings(environ={"HPKV_LISTN__PORT": "1", "HPKV_HOME": "/x"})


def test_an_unknown_key_of_a_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPKV_LISTEN__PROT", "1")
    with pytest.raises(SettingsError, match="did you mean port"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("HPKV_REPLICSA", r"did you mean HPKV_REPLICAS\?"),
        ("HPKV_MODEL", r"did you mean HPKV_MODELS\?"),
        ("HPKV_LOG_LEVEL", r"did you mean HPKV_LOG__LEVEL\?"),
    ],
)
def test_a_variable_that_is_nearly_a_setting_is_an_error(name: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: no such setting; {message}"):
        load_settings(environ={name: "1"})


def test_variables_of_other_commands_pass() -> None:
    up = ("ENGINES", "ENGINE_ARGS", "ENGINE_PORT", "MODEL", "PORT", "REPLICAS", "START_TIMEOUT", "STATE")
    names = [
        "HPKV_HOME",
        "HPKV_ADMIN_KEY",
        "HPKV_CONFIG",
        "HPKV_REPLICAS",
        "HPKV_CACHE__SSD__PATH",
        *(f"HPKV_UP_{name}" for name in up),
    ]
    load_settings(environ=dict.fromkeys(names, "x"))


def test_an_unknown_key_of_a_models_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPKV_MODELS__M__TOKENISER", "x")
    with pytest.raises(SettingsError, match=r"models\.m\.tokeniser: .* did you mean tokenizer\?"):
        load_settings()


@pytest.mark.parametrize(
    "url", ["http://u:S3CRET@h:1", "http://S3CRET@h", "https://h/?key=S3CRET", "http://h/#S3CRET"]
)
def test_secrets_in_a_url_are_refused_and_not_shown(tmp_path: Path, url: str) -> None:
    for replica in (f"'{url}'", f"{{url: '{url}', name: q}}"):
        with pytest.raises(SettingsError, match=r"replicas\.0\.url: .*`api_key`") as refused:
            load(f"replicas: [{replica}]", tmp_path)
        assert "S3CRET" not in f"{refused.value} {refused.value.__cause__}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("events: 'a:5'", r"replicas\.0\.events: write tcp://HOST:PORT or ipc://PATH"),
        ("events: 'inproc://a'", "tcp://HOST:PORT"),
        ("events: 'tcp://a'", "tcp://HOST:PORT"),
        ("events: 'tcp://a:0'", "tcp://HOST:PORT"),
        ("events: 'tcp://a:70000'", "tcp://HOST:PORT"),
        ("events: 'tcp://a:5', replay: 'ipc://'", r"replay: write"),
        ("events: 'tcp://*:5'", "events: nobody can connect to .*bind_events"),
        ("events: 'tcp://*:5', bind_events: true, replay: 'tcp://*:6'", "replay: nobody"),
        ("events: 'ipc:///a', ranks: 2", "ranks > 1: events must be tcp://HOST:PORT"),
        ("events: 'tcp://a:65535', ranks: 2", "PORT \\+ r"),
        ("agent: 'a:5'", r"replicas\.0\.agent: write tcp://HOST:PORT or ipc://PATH"),
        ("agent: 'tcp://*:5'", "agent: nobody can connect"),
        ("agent: 'tcp://a:65534'", "three ports"),
        ("agent: 'tcp://a:65531', ranks: 2", "three ports"),
        ("agent_key: a", "set agent"),
        ("agent: 'tcp://a:5', agent_key: a", "go together"),
        ("agent: 'tcp://a:5', agent_key: a, agent_secret_file: /nowhere", "40 characters"),
        (
            f"agent: 'tcp://a:5', agent_key: '{PUBLIC}', agent_secret_file: /nowhere",
            "agent_secret_file: /nowhere",
        ),
    ],
)
def test_endpoints_that_nobody_can_reach(tmp_path: Path, settings: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(f"replicas: [{{url: 'http://a', {settings}}}]", tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        "events: 'tcp://[::1]:5', replay: 'ipc:///run/a b'",
        "events: 'tcp://*:5', bind_events: true",
        "events: 'tcp://a:65534', replay: 'tcp://a:5', ranks: 2",
        "agent: 'tcp://a:65530', ranks: 2",
        "agent: 'ipc:///run/agent', ranks: 2",
        "ranks: 2",
    ],
)
def test_endpoints_that_can_be_reached(tmp_path: Path, settings: str) -> None:
    load(f"replicas: [{{url: 'http://a', {settings}}}]", tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\x00"])
@pytest.mark.parametrize(
    "text",
    [
        "listen: {{tls_cert: {0}, tls_key: {0}}}",
        "replicas: [{{url: 'https://a', ca_file: {0}}}]",
    ],
)
def test_a_file_that_is_no_certificate(tmp_path: Path, text: str, content: bytes) -> None:
    file = tmp_path / "file.pem"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"file\.pem.*give a PEM"):
        load(text.format(file), tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"S3CRET\nS3CRET2", b"S3CRET\x00", "S3CRETé".encode()])
def test_a_key_file_that_cannot_be_sent(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"api_key_file: .*(UTF-8|ASCII)") as refused:
        load(f"replicas: [{{url: 'http://a', api_key_file: {file}}}]", tmp_path)
    assert "S3CRET" not in str(refused.value)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "hpkv.yaml"
    file.write_bytes(b'listen: {host: "\xff"}')
    with pytest.raises(SettingsError, match=r"hpkv\.yaml: .*invalid start byte"):
        load_settings(file, environ={})


def test_an_error_in_the_file_does_not_quote_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load("replicas: [{url: 'http://a', api_key: S3CRET]", tmp_path)
    assert "S3CRET" not in str(refused.value)


def test_an_empty_file_and_merged_keys_are_fine(tmp_path: Path) -> None:
    assert load("# nothing yet", tmp_path) == Settings()
    merged = load("models: {a: &a {tokenizer: x}, b: {<<: *a, tokenizer: y}}", tmp_path)
    assert merged.models["b"].tokenizer == "y"


def test_hashes_may_be_written_in_capitals(tmp_path: Path) -> None:
    hashed = hash_key(b"sk-1").upper()
    assert load(f"access: {{api_keys: ['{hashed}']}}", tmp_path).access.api_keys == {hash_key(b"sk-1")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listen: {port: 70000}", r"listen\.port: .*65535"),
        ("listen: {port: x}", r"listen\.port: "),
        ("listen: [", "hpkv.yaml"),
        ("listen: {tls_cert: /nowhere}", "go together"),
        ("routing: {policy: magic}", r"routing\.policy: "),
        ("replicas: ['http://a:1', 'http://a:1']", "a:1 is given twice"),
        ("replicas: [{url: 'http://a', api_key: k, api_key_file: /f}]", "set one"),
        ("access: {api_keys_file: /nowhere}", "api_keys_file: /nowhere: No such file"),
        ("access: {api_keys: 12345678}", r"access\.api_keys: write a list of strings"),
        ("access: {api_keys: [12345678]}", "list of strings"),
        ("access: {api_keys: null}", "list of strings"),
        ("access: {api_keys: {k: 1}}", "list of strings"),
        ("access: {api_keys: ['sha256:abc']}", "64 hex digits"),
        ("access: {api_keys: ['two words']}", "one word of printable ASCII"),
        ("models: {m: {tokeniser: x}}", r"models\.m\.tokeniser: .* did you mean tokenizer\?"),
        ("models: {m: {chat_template: /nowhere}}", r"models\.m\.chat_template: /nowhere: No such file"),
        ("timeouts: {idle_s: .inf}", r"timeouts\.idle_s: .*finite"),
        ("shutdown: {grace_s: .nan}", r"shutdown\.grace_s: .*"),
        ("prefix: {silent_s: .inf}", r"prefix\.silent_s: .*finite"),
        ("replicas: [{url: 'http://a', api_key: \"k\\n2\"}]", "one word of printable ASCII"),
        ("replicas: [{url: 'http://a', api_key: ké}]", "one word of printable ASCII"),
        ("replicas: [{url: 'http://a', ca_file: /nowhere}]", "ca_file: /nowhere: .*No such file"),
        (
            "replicas: [{url: 'http://a', name: a, ranks: 2}, {url: 'http://b', name: a.1}]",
            "a.1 is given twice",
        ),
        ("- a", "write sections"),
        ("hello", "write sections"),
        ("5: x", "a key must be a string"),
        ("listen: {port: 1, port: 2}", "port is given twice"),
        ("{listen: {port: 1}, listen: {}}", "listen is given twice"),
        ("[" * 5000, "hpkv.yaml"),
        ("listen: {port: 2024-99-99}", "hpkv.yaml"),
    ],
)
def test_what_cannot_be_used_says_why(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(text, tmp_path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a file"):
        load_settings(tmp_path / "none.yaml", environ={})


def test_beyond_loopback_it_asks_for_keys(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"reachable from other machines.*api_keys_file"):
        load("listen: {host: 0.0.0.0}", tmp_path)
    load("{listen: {host: 0.0.0.0}, access: {api_keys: [sk-1]}}", tmp_path)
    load("listen: {host: '::1'}", tmp_path)


def test_keys_are_kept_as_hashes_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"sk-plain  # the first\n\n{hash_key(b'sk-hashed')}\n")
    settings = load(f"access: {{api_keys_file: {keys}, admin_keys: [sk-admin]}}", tmp_path)
    assert settings.access.api_keys == {hash_key(b"sk-plain"), hash_key(b"sk-hashed")}
    assert "sk-" not in repr(settings)
    assert "sk-" not in settings.model_dump_json()


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPKV_ACCESS__API_KEYS", "sk-1, sk-2")
    assert load_settings().access.api_keys == {hash_key(b"sk-1"), hash_key(b"sk-2")}


def test_a_key_file_without_keys_does_not_open_the_gateway(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# none yet\n")
    with pytest.raises(SettingsError, match="holds no key"):
        load(f"access: {{api_keys_file: {keys}}}", tmp_path)


def test_a_replica_is_named_after_its_address(tmp_path: Path) -> None:
    settings = load("replicas: ['http://host:81', {url: 'https://b/v', name: second}]", tmp_path)
    assert [replica.name for replica in settings.replicas] == ["host:81", "second"]


def test_a_replicas_key_is_not_shown(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("from-file\n")
    text = f"replicas: [{{url: 'http://a', api_key: s3cret}}, {{url: 'http://b', api_key_file: {key}}}]"
    settings = load(text, tmp_path)
    assert [replica.credential() for replica in settings.replicas] == ["s3cret", "from-file"]
    assert "s3cret" not in repr(settings) + settings.model_dump_json()


def test_an_agents_keys_are_read_and_the_secret_is_not_shown(tmp_path: Path) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    (tmp_path / "secret.key").write_text(f"{secret}\n")
    said = f"agent: 'tcp://a:5', agent_key: '{public}', agent_secret_file: {tmp_path / 'secret.key'}"
    settings = load(f"replicas: [{{url: 'http://a', {said}}}]", tmp_path)
    address = settings.replicas[0].agent_address()
    assert address is not None
    assert address._replace(rank=1).endpoints == ("tcp://a:8", "tcp://a:9", "tcp://a:10")
    assert address.keys == (secret.encode(), public.encode())
    assert secret not in repr(settings)
    assert secret not in settings.model_dump_json()
