"""What names a store: a path, or a URL without secrets."""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from cache.errors import SettingsError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_REMEDY = "credentials belong into the environment or a file, see docs/stores.md"


class Address(NamedTuple):
    """A store's URL, taken apart. It holds nothing that mustn't be logged."""

    scheme: str
    """Empty for a path."""
    host: str
    """Bucket, container or server."""
    path: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        if not self.scheme:
            return self.path
        return f"{self.scheme}://{self.host}{self.path}"

    def allow(self, options: Collection[str]) -> "Address":
        """Itself, if it has no other options than these. Raises SettingsError; it tells no values."""
        unknown = sorted(set(self.options) - set(options))
        if unknown:
            known = ", ".join(sorted(options)) or "none"
            raise SettingsError(f"{self}: unknown option {', '.join(unknown)} (there is: {known}); {_REMEDY}")
        return self


def parse(target: str) -> Address:
    """Take a path or URL apart. Raises SettingsError, which repeats no secret, for one with a password."""
    found = _URL.match(target)
    if not found:
        if "\0" in target or _ONE_SLASH.match(target):
            raise SettingsError("what is neither a path nor a URL: write a URL with two slashes, s3://…")
        return Address("", "", target, MappingProxyType({}))
    scheme = found[1].lower()
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise SettingsError(f"a {scheme}:// URL that can't be read: check its host and port") from error
    if "@" in parts.netloc or (":" in parts.netloc and "@" in target):  # a key with a slash ends the host
        raise SettingsError(f"a {scheme}:// URL with a user or password in it: take them out; {_REMEDY}")
    if parts.fragment:
        raise SettingsError(f"a {scheme}:// URL with a '#' in it: write it as %23")
    options = MappingProxyType(dict(parse_qsl(parts.query, keep_blank_values=True)))
    return Address(scheme, parts.netloc, unquote(parts.path), options)
