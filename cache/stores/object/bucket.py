"""A store's objects, for upkeep and the commands; and what a service's refusals mean.

The names are those of `cache.stores.names`, behind the URL's prefix. A client's errors repeat whole requests
and answers, credentials' names among them: of those only the service's own code is ever told.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions

from cache.errors import FolderError
from cache.stores.shelf import NEW, Blob, Entry, Missing, Shelf

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ObjectStore

KIND = "hpkv-object"

_PAGE = 1000
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_METADATA = ("169.254.169.254", "metadata.google")
"""Where a client looks for credentials last, on machines of the service."""


class ObjectShelf(Shelf):
    """Things in a bucket, under a prefix."""

    width = 32
    batch = 1000

    def __init__(self, client: "ObjectStore", where: str) -> None:
        self.client = client
        self.where = where

    def entries(self) -> Iterator[Entry]:
        """By pages of the listing."""
        with explained(self.where):
            for chunk in obstore.list(self.client, chunk_size=_PAGE):
                for meta in chunk:
                    yield Entry(meta["path"], meta["size"], meta["last_modified"].timestamp())

    def get(self, name: str, size: int | None = None) -> Blob:  # noqa: D102
        with explained(self.where, name):
            found = obstore.get(self.client, name, options={"range": (0, size)} if size else None)
            meta, data = found.meta, bytes(found.bytes())
            return Blob(data, meta["last_modified"].timestamp(), meta["e_tag"] or "")

    def put(self, name: str, data: bytes, over: str) -> bool:
        """In one step, where the service can; else the later of two that replace the same version wins."""
        with explained(self.where):
            try:
                self._put(name, data, "create" if over == NEW else {"e_tag": over})
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
            except (exceptions.NotSupportedError, NotImplementedError):
                if self._version(name) != over:
                    return False
                self._put(name, data, "overwrite")
            return True

    def remove(self, names: Sequence[str]) -> list[bool]:
        """A service doesn't say which of them were there; one by one, it may."""
        if not names:
            return []
        with explained(self.where):
            try:
                obstore.delete(self.client, names)
            except FileNotFoundError:
                return [self._remove(name) for name in names]
        return [True] * len(names)

    def now(self) -> float:
        """By the service's clock, which stamps the objects."""
        name = f".now.{secrets.token_hex(8)}"
        with explained(self.where):
            obstore.put(self.client, name, b"\n", use_multipart=False)
            try:
                return obstore.head(self.client, name)["last_modified"].timestamp()
            finally:
                self._remove(name)

    def _put(self, name: str, data: bytes, mode: "PutMode") -> None:
        obstore.put(self.client, name, data, mode=mode, use_multipart=False)

    def _version(self, name: str) -> str:
        try:
            return obstore.head(self.client, name)["e_tag"] or ""
        except FileNotFoundError:
            return NEW

    def _remove(self, name: str) -> bool:
        try:
            obstore.delete(self.client, name)
        except FileNotFoundError:
            return False
        return True


@contextlib.contextmanager
def explained(where: str, name: str = "") -> Iterator[None]:
    """Say what to do about a service's refusals, and repeat nothing of them but their code.

    Raises Missing where the thing `name` isn't there, FolderError else.
    """
    try:
        yield
    except (exceptions.BaseError, OSError) as error:
        if name and isinstance(error, FileNotFoundError) and code_of(error) not in _NO_BUCKET:
            raise Missing(name) from None
        raise FolderError(f"{where} {_meaning(error)}") from None


def code_of(error: Exception) -> str:
    """A service's own name for what went wrong, or the HTTP status, or the client's; never its text."""
    text = str(error)
    found = _CODE.search(text) or _STATUS.search(text)
    return found[1] if found else type(error).__name__


def _meaning(error: Exception) -> str:
    code = code_of(error)
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if any(address in str(error) for address in _METADATA):
        return "has no credentials: set the service's variables in the environment, see docs/stores.md"
    if code in _NO_BUCKET:
        return f"doesn't exist ({code}): make the bucket, or check its name and the endpoint"
    if denied or _status(error) in ("401", "403"):
        return f"refuses these credentials ({code}): check them in the environment, and what they may do"
    if _status(error):
        return f"can't be used: the service answers {code}"
    return f"doesn't answer ({code}): check the endpoint and the network"


def _status(error: Exception) -> str:
    found = _STATUS.search(str(error))
    return found[1] if found else ""
