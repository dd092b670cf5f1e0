import os
from pathlib import Path

import pytest

from engine_adapters import shared_memory
from engine_adapters.errors import SettingsError


def test_what_is_free_passes_and_more_does_not(tmp_path: Path) -> None:
    stat = os.statvfs(tmp_path)
    free = stat.f_bavail * stat.f_frsize
    shared_memory.require(free // 2, tmp_path)
    with pytest.raises(
        SettingsError, match=rf"doesn't fit into {tmp_path}, where \d+ MiB are free.*--shm-size="
    ):
        shared_memory.require(2 * free, tmp_path)
