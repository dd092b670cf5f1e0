from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, hash_key, load_settings


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
