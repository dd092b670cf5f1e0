"""Small file systems of their own, where mounting is permitted."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, *arguments: str | Path) -> Iterator[Path]:
    """What `mount ARGUMENTS` puts there; skips where that isn't permitted."""
    folder.mkdir()
    command = ["mount", *map(str, arguments), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting isn't permitted here ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def memory(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs."""
    with mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "none") as mount:
        yield mount


@contextlib.contextmanager
def disk(folder: Path, size: int) -> Iterator[Path]:
    """An ext4 file system in a file of `size` bytes."""
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mkfs.ext4 isn't here")
    with mounted(folder, "-o", "loop", image) as mount:
        yield mount
