"""The kinds of engine by name."""

from engine_adapters.base import Engine
from engine_adapters.http import Connection
from engine_adapters.vllm.http import VllmEngine

KINDS: dict[str, type[Engine]] = {kind.kind: kind for kind in (VllmEngine,)}


def create_engine(kind: str, connection: Connection) -> Engine:
    """The HTTP side of an engine of this kind."""
    return KINDS[kind](connection)
