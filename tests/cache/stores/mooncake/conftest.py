from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cache.stores.mooncake.pool import Master


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    """A master, and another process that lends it 64 MiB."""
    with Master(tmp_path_factory.mktemp("mooncake") / "master.log") as running:
        running.spawn("lender", "64MiB")
        yield running


@pytest.fixture
def lone_master(tmp_path: Path) -> Iterator[Master]:
    """A master that this test may kill; its leases are short."""
    with Master(tmp_path / "master.log", "--default_kv_lease_ttl=2000", "--client_ttl=2") as running:
        yield running
