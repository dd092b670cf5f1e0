"""Regions in shared memory, and what dead engines left of them."""

import fcntl
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER = Path("/dev/shm")
PREFIX = "vllm_offload_hpkv-"


def own(descriptor: int) -> None:
    """Mark a region as in use, for as long as this process lives."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def remove_abandoned(folder: Path = FOLDER) -> list[Path]:
    """Remove regions of ours that no living process uses; returns them.

    A name is in use only while an engine starts: once all its processes have mapped the region, it is
    dropped, and the memory goes with the last of them.
    """
    removed = []
    for path in folder.glob(f"{PREFIX}*"):
        try:
            if _abandoned(path):
                path.unlink()
                removed.append(path)
        except OSError as error:  # another user's, or just removed by another engine
            logger.debug("%s stays: %s", path, error)
    return removed


def _abandoned(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
