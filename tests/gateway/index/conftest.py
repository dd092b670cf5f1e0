import pytest

from engine_adapters.events import Origin
from gateway.index import Index
from tests.gateway.index.engine import Engine


@pytest.fixture
def index() -> Index:
    """An index of two replicas that send events, with 16-token blocks."""
    index = Index(blocks=4096)
    for replica in ("a", "b"):
        index.attach(Origin(replica))
    return index


@pytest.fixture
def engine() -> Engine:
    return Engine()
