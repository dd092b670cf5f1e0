"""What lies at the root of each store: what it is, its id and its generation.

{"kind": "hpkv-posix", "format": 1, "id": "16 hex digits", "generation": "16 hex digits"}

Everything is named under the generation. `clear` writes another one, and so voids at once what lies under the
old one, also what a crash or a slow listing keeps from being removed.
"""

import contextlib
import json
import re
import secrets
from typing import NamedTuple

from cache.errors import FolderError, ForeignError, VersionError
from cache.keys import FORMAT
from cache.stores.shelf import DRAFT, NEW, Missing, Shelf

NAME = "hpkv.json"
"""What the root's file or object is called."""

_HEX = re.compile(r"[0-9a-f]{16}")


class Root(NamedTuple):
    """A store's root."""

    kind: str
    """Such as "hpkv-posix"."""
    store_id: str
    """16 hex digits."""
    generation: int
    """64 bits."""

    @classmethod
    def new(cls, kind: str) -> "Root":
        """The root of a new store."""
        return cls(kind, secrets.token_hex(8), secrets.randbits(64))

    def cleared(self) -> "Root":
        """The same store in another generation: everything in it is void."""
        return self._replace(generation=secrets.randbits(64))

    def dump(self) -> bytes:
        """As it is stored."""
        mark = {
            "kind": self.kind,
            "format": FORMAT,
            "id": self.store_id,
            "generation": f"{self.generation:016x}",
        }
        return json.dumps(mark).encode() + b"\n"


def parse(raw: bytes, kind: str, where: str) -> Root:
    """Read a root back. Raises ForeignError or VersionError; `where` names the store in their messages."""
    try:
        mark = json.loads(raw)
        found, version = mark["kind"], mark["format"]
        if found == kind and version == FORMAT:
            return Root(kind, _digits(mark["id"]), int(_digits(mark["generation"]), 16))
    except (ValueError, KeyError, TypeError) as error:
        raise ForeignError(
            f"{where}: its {NAME} is damaged or not ours; if the store is, remove it"
        ) from error
    if found != kind:
        raise ForeignError(
            f"{where} is a cache of kind {found!r}, not {kind!r}: name another place, or that kind"
        )
    raise VersionError(
        f"{where} was written in format {version}, this is format {FORMAT}: "
        "use that version, or name another place"
    )


def load(shelf: Shelf, kind: str) -> Root:
    """The root of a store that must be there. Raises FolderError if it isn't, and what `parse` raises."""
    try:
        return parse(shelf.get(NAME).data, kind, shelf.where)
    except Missing:
        raise ForeignError(f"{shelf.where} has no {NAME}: it isn't a store, or isn't mounted") from None


def claim(shelf: Shelf, kind: str) -> Root:
    """The root of a store, which is made if nothing is there. Of many who make it at once, one does."""
    with contextlib.suppress(Missing):
        return parse(shelf.get(NAME).data, kind, shelf.where)
    stranger = next((entry.name for entry in shelf.entries() if not DRAFT.fullmatch(entry.name)), NAME)
    if stranger == NAME:
        shelf.put(NAME, Root.new(kind).dump(), NEW)
        return load(shelf, kind)
    with contextlib.suppress(Missing):  # another has made it meanwhile, and the stranger is one of its pages
        return parse(shelf.get(NAME).data, kind, shelf.where)
    raise ForeignError(
        f"{shelf.where} holds {stranger!r} and no {NAME}: it isn't a store. Name an empty or a new place"
    )


def clear(shelf: Shelf, kind: str) -> Root:
    """Begin a new generation: everything in the store is void from now on."""
    load(shelf, kind)
    for _ in range(10):
        blob = shelf.get(NAME)
        cleared = parse(blob.data, kind, shelf.where).cleared()
        if shelf.put(NAME, cleared.dump(), blob.version):
            return cleared
    raise FolderError(f"{shelf.where} is being cleared by others all the time: try again")


def _digits(text: str) -> str:
    if not _HEX.fullmatch(text):
        raise ValueError(text)
    return text
