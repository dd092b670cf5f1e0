"""What records are called in a store: GENERATION/NAMESPACE/FAN/KEY, all in hex.

The generation comes first, so that what a `clear` has voided lies apart. FAN is the key's first byte: 256
folders a namespace, however many pages there are.
"""

import re
from typing import NamedTuple

from cache.keys import Namespace

_NAME = re.compile(r"([0-9a-f]{16})/([0-9a-f]{32})/([0-9a-f]{2})/((?:[0-9a-f]{2}){1,64})")


class Name(NamedTuple):
    """A record's name, taken apart."""

    generation: int
    namespace: Namespace
    key: bytes


def shelf_of(generation: int, namespace: Namespace) -> str:
    """Where a namespace's records of a generation lie."""
    return f"{generation:016x}/{namespace.hex()}"


def name_of(generation: int, namespace: Namespace, key: bytes) -> str:
    """The name of a page's record."""
    digits = key.hex()
    return f"{generation:016x}/{namespace.hex()}/{digits[:2]}/{digits}"


def parse(name: str) -> Name | None:
    """A record's name taken apart; None when it is no record's."""
    found = _NAME.fullmatch(name)
    if not found or found[3] != found[4][:2]:
        return None
    return Name(int(found[1], 16), Namespace(bytes.fromhex(found[2])), bytes.fromhex(found[4]))
