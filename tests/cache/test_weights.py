import os
from pathlib import Path

import pytest

from cache import weights
from cache.errors import SettingsError
from cache.weights import fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(bytes(1000))
    (folder / "b.safetensors").write_bytes(b"b" * 1000)
    (folder / "config.json").write_text("{}")
    return folder


def test_equal_weights_have_one_name_wherever_they_lie(model: Path, tmp_path: Path) -> None:
    first = fingerprint(model, tmp_path / "memory.json")
    moved = model.rename(tmp_path / "elsewhere")
    assert fingerprint(moved, tmp_path / "memory.json") == first


@pytest.mark.parametrize("at", [0, 500, 999])
def test_every_byte_counts(model: Path, tmp_path: Path, at: int) -> None:
    first = fingerprint(model, tmp_path / "memory.json")
    with (model / "a.safetensors").open("r+b") as file:
        file.seek(at)
        file.write(b"x")
    os.utime(model / "a.safetensors", ns=(1, 1))
    assert fingerprint(model, tmp_path / "memory.json") != first


def test_swapped_files_are_other_weights(model: Path, tmp_path: Path) -> None:
    first = fingerprint(model, tmp_path / "memory.json")
    (model / "a.safetensors").rename(model / "c.safetensors")
    assert fingerprint(model, tmp_path / "memory.json") != first


def test_nothing_is_hashed_twice(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint(model, tmp_path / "memory.json")
    hashed: list[Path] = []
    monkeypatch.setattr(weights, "_hash", lambda path: hashed.append(path) or "")
    assert fingerprint(model, tmp_path / "memory.json") == first
    assert hashed == []


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": [[1], 2, 3]}'])
def test_a_damaged_memory_remembers_nothing(model: Path, tmp_path: Path, text: str) -> None:
    first = fingerprint(model, tmp_path / "memory.json")
    (tmp_path / "memory.json").write_text(text)
    assert fingerprint(model, tmp_path / "memory.json") == first


def test_a_hub_snapshot_names_its_commit(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--org--model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    assert fingerprint(snapshot, tmp_path / "memory.json") == commit


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no weight files"):
        fingerprint(tmp_path, tmp_path / "memory.json")
