"""The kinds of engine by name."""

from engine_adapters.base import Address, Engine
from engine_adapters.sglang.http import SglangEngine
from engine_adapters.vllm.http import VllmEngine

KINDS: dict[str, type[Engine]] = {kind.kind: kind for kind in (VllmEngine, SglangEngine)}


def create_engine(kind: str, address: Address) -> Engine:
    """An engine of this kind, seen from outside."""
    return KINDS[kind](address)
