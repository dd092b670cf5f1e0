from pathlib import Path

import pytest

from cache.policies import SecondTouch
from cache.testing import BASE, PAGE_BYTES
from cache.tiers.base import Tier
from engine_adapters.errors import SettingsError
from engine_adapters.levels import open_levels
from engine_adapters.settings import Settings, SharedSettings


def settings(folder: Path) -> Settings:
    return Settings.model_validate(
        {"host": "1MiB", "ssd": {"path": str(folder), "cap": "4MiB", "free_floor": 0}}
    )


def test_ssd(tmp_path: Path) -> None:
    (level,) = open_levels(settings(tmp_path / "kv"), BASE, PAGE_BYTES)
    assert level.store.tier is Tier.SSD
    assert level.store.usage().capacity == 4 << 20
    level.store.close()


def test_ssd_and_a_shared_folder(tmp_path: Path) -> None:
    both = settings(tmp_path / "kv").model_copy(
        update={"shared": SharedSettings(url=str(tmp_path / "shared"), admission="second_touch")}
    )
    ssd, shared = open_levels(both, BASE, PAGE_BYTES)
    assert (ssd.store.tier, shared.store.tier) == (Tier.SSD, Tier.SHARED)
    assert isinstance(shared.admission, SecondTouch)
    for level in (ssd, shared):
        level.store.close()


def test_a_store_that_cannot_be_opened_leaves_the_others_closed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    both = settings(tmp_path / "kv").model_copy(update={"shared": SharedSettings(url=str(file))})
    with pytest.raises(SettingsError, match="shared: "):
        open_levels(both, BASE, PAGE_BYTES)
    (level,) = open_levels(settings(tmp_path / "kv"), BASE, PAGE_BYTES)
    assert (tmp_path / "kv/00").is_dir()
    assert not (tmp_path / "kv/01").exists(), "the first one's sub-folder was given back"
    level.store.close()


def test_a_folder_of_somebody_else_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(SettingsError, match="ssd: "):
        open_levels(settings(tmp_path), BASE, PAGE_BYTES)
