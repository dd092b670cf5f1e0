"""From a URL to a bucket. Credentials come from the environment or from files, never from the URL.

s3://BUCKET/PREFIX?endpoint=…&region=…&profile=…    AWS_… variables, or a profile of the credentials file
gs://BUCKET/PREFIX                                 GOOGLE_… variables
az://CONTAINER/PREFIX?account=…&endpoint=…         AZURE_STORAGE_… variables
file:///PATH                                       a local folder, as objects
"""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from obstore import exceptions, store

from cache.errors import FolderError, SettingsError, refusal
from cache.stores.address import Address
from cache.stores.object.profile import Profile

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(?:/[A-Za-z0-9._~/-]*)?")
_RETRIES = 1
"""One more try evens out a server that sheds load; more would take longer than recomputing."""


class _Service(NamedTuple):
    options: Mapping[str, str]
    """Of the URL → of the client."""
    make: Callable[..., "ObjectStore"]


def connect(address: Address, seconds: float, new: bool) -> "ObjectStore":
    """A client whose requests end after `seconds`.

    Asks nothing of the server yet; a local folder is made if `new`. Raises SettingsError for what can't work,
    FolderError for a folder that can't be used.
    """
    if address.scheme == "file":
        return _local(address, new)
    services: Mapping[str, _Service] = MappingProxyType(
        {
            "s3": _Service({"endpoint": "endpoint", "region": "region"}, store.S3Store),
            "gs": _Service({}, store.GCSStore),
            "az": _Service({"account": "account_name", "endpoint": "endpoint"}, store.AzureStore),
        }
    )
    service = services[address.scheme]
    address.allow([*service.options, "profile"] if address.scheme == "s3" else service.options)
    if not address.host:
        raise SettingsError(f"{address} names no bucket: write {address.scheme}://BUCKET/PREFIX")
    endpoint = address.options.get("endpoint", "")
    if endpoint and not _ENDPOINT.fullmatch(endpoint):  # the client would panic at its first request
        raise SettingsError(f"{address}: endpoint= is no http://HOST:PORT, without user and password")
    config: dict[str, Any] = {
        service.options[name]: value for name, value in address.options.items() if name in service.options
    }
    if "profile" in address.options:
        config["credential_provider"] = Profile(address.options["profile"])
    try:
        return service.make(
            address.host,
            prefix=address.path.strip("/") or None,
            client_options={
                "timeout": timedelta(seconds=seconds),
                "connect_timeout": timedelta(seconds=seconds / 2),
                "allow_http": endpoint.startswith("http://"),
            },
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": timedelta(seconds=seconds),
                "backoff": {"init_backoff": timedelta(milliseconds=50)},
            },
            **config,
        )
    except (exceptions.BaseError, ValueError):  # that for a path such as a//b
        raise SettingsError(
            f"{address}: the client refuses its configuration: check the URL's path and options, and the "
            "service's variables in the environment, see docs/stores.md"
        ) from None


def _local(address: Address, new: bool) -> "ObjectStore":
    address.allow(())
    if address.host:
        raise SettingsError(f"{address}: a local folder is written with three slashes, file:///PATH")
    path = Path(address.path)
    if not new and not path.is_dir():
        raise FolderError(f"{path} isn't a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(path, error) from error
    return store.LocalStore(path)
