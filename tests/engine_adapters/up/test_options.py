from pathlib import Path
from typing import Any

import pytest

from engine_adapters.up import hub
from engine_adapters.up.errors import ModelUnusable, UpError
from engine_adapters.up.options import Model, Options, find_model


def options(tmp_path: Path, **fields: Any) -> Options:
    return Options(home=tmp_path, state=tmp_path / "up", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replicas": 0}, "--replicas 0"),
        ({"port": 8102}, "also a replica's"),
        ({"engines": ("localhost:8101",)}, "not the URL"),
        ({"engines": ("sglang+http://gpu1:30000",)}, "whatever its kind, which is found by asking"),
    ],
)
def test_what_can_not_be(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UpError, match=message):
        options(tmp_path, **fields)


def test_ports_of_replicas(tmp_path: Path) -> None:
    assert list(options(tmp_path, replicas=3, engine_port=9000).engine_ports) == [9000, 9001, 9002]
    assert list(options(tmp_path, engines=("http://x:1",), port=8101).engine_ports) == []


def test_the_small_model_is_the_default(tmp_path: Path) -> None:
    model = find_model(options(tmp_path))
    assert model.source == str(tmp_path / "models" / "SmolLM2-135M-Instruct")
    assert model.name == "SmolLM2-135M-Instruct"


def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(ModelUnusable, match=r"has no config\.json"):
        find_model(options(tmp_path, model=str(folder)))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    assert find_model(options(tmp_path, model=str(folder))) == Model(str(folder), "mine", 1000)


def test_a_hubs_name_and_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(hub, "require", asked.append)
    assert find_model(options(tmp_path, model="owner/name")).source == "owner/name"
    assert asked == ["owner/name"]
    with pytest.raises(ModelUnusable, match="no such folder"):
        find_model(options(tmp_path, model="/no/such/folder"))
