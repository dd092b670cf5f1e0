"""Paths and URLs, and the secrets that must not be in them."""

import pytest

from cache.errors import SettingsError
from cache.stores import Settings, open_store
from cache.stores.address import parse


def test_takes_urls_apart() -> None:
    address = parse("s3://bucket/some/prefix?endpoint=http://127.0.0.1:9000&region=here")
    assert (address.scheme, address.host, address.path) == ("s3", "bucket", "/some/prefix")
    assert address.options == {"endpoint": "http://127.0.0.1:9000", "region": "here"}
    assert str(address) == "s3://bucket/some/prefix"
    assert parse("/mnt/kv?x#y").path == "/mnt/kv?x#y"
    assert parse("file:///mnt/a%20b").path == "/mnt/a b"


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:hunter2@bucket/prefix",
        "s3://hunter2@bucket",
        "s3://AKIA:hunter2/rest@bucket/prefix",
        "mooncake://host:1/p?metadata=http://me:hunter2@host",
        "s3://bucket/prefix?secret_access_key=hunter2",
        "az://box/?sig=hunter2&endpoint=http://x",
        "s3://bucket#hunter2",
        "s3://[hunter2/",
    ],
)
def test_refuses_secrets_and_does_not_repeat_them(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(url).allow({"endpoint"})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None or "hunter2" not in str(caught.value.__cause__)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(SettingsError, match="ftp:// names no kind of store"):
        open_store("ftp://host/path", Settings(page_bytes=4096))


@pytest.mark.parametrize("target", ["s3:/bucket/prefix", "s3:/AKIA:hunter2@bucket", "/mnt/\0kv"])
def test_what_is_neither_a_path_nor_a_url(target: str) -> None:
    with pytest.raises(SettingsError, match="neither") as caught:
        parse(target)
    assert "hunter2" not in str(caught.value)
