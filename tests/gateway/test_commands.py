from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.commands import app

run = CliRunner().invoke


def test_check_config_shows_what_would_be_used(tmp_path: Path) -> None:
    file = tmp_path / "hpkv.yaml"
    file.write_text("{replicas: [{url: 'http://a:1', api_key: s3cret}], access: {api_keys: [sk-1, sk-2]}}")
    result = run(app, ["check-config", "--config", str(file), "--port", "9001"])
    assert result.exit_code == 0
    assert "port: 9001" in result.output
    assert "api_keys: 2 keys" in result.output
    assert "s3cret" not in result.output
    assert "sk-" not in result.output


@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_unusable_settings_stop_the_start(tmp_path: Path, command: str) -> None:
    file = tmp_path / "hpkv.yaml"
    file.write_text("listen: {prot: 1}")
    result = run(app, [command, "--config", str(file)])
    assert result.exit_code == 2
    assert "did you mean port?" in result.output
    assert "Traceback" not in result.output


def test_flags_name_replicas() -> None:
    result = run(app, ["check-config", "--replica", "http://a:1", "--replica", "http://b:2"])
    assert "name: a:1" in result.output
    assert "name: b:2" in result.output


@pytest.mark.parametrize(("flags", "warnings"), [([], 1), (["--replica", "http://gpu1:8000"], 0)])
def test_a_gateway_without_replicas_says_so_once(
    flags: list[str], warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.server.Server.run", lambda server, sockets: None)
    monkeypatch.setattr("gateway.telemetry.logs.configure_logging", lambda settings: None)
    assert run(app, ["serve", "--port", "0", *flags]).exit_code == 0
    assert len([record for record in caplog.records if "no replica" in record.message]) == warnings


def test_a_body_that_is_not_there(tmp_path: Path) -> None:
    result = run(app, ["route", "--body", str(tmp_path / "gone.json")])
    assert result.exit_code == 2
    assert "No such file or directory" in " ".join(result.output.replace("│", "").split())
