import os
from collections.abc import Iterator

import pytest

from tests.cache.stores.posix.mount import Mount


@pytest.fixture(scope="module")
def shared_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        pytest.skip("mounting needs /dev/fuse and root")
    folder = tmp_path_factory.mktemp("fuse")
    mount = Mount(folder / "source", folder / "target")
    yield mount
    mount.close()


@pytest.fixture
def mount(shared_mount: Mount) -> Iterator[Mount]:
    """A healthy mount, and healthy again afterwards."""
    yield shared_mount
    shared_mount.tell("go")
    shared_mount.tell("fail 0")
    shared_mount.tell("delay 0")
