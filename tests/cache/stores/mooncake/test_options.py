import pytest

from cache.errors import SettingsError
from cache.stores import address
from cache.stores.mooncake.options import Options


def parse(url: str) -> Options:
    return Options.parse(address.parse(url))


def test_what_a_url_leaves_out() -> None:
    options = parse("mooncake://127.0.0.1")
    assert options == Options(
        master="127.0.0.1:50051",
        prefix="hpkv",
        segment=4 << 30,
        host="127.0.0.1",
        protocol="tcp",
        devices="",
        metadata="P2PHANDSHAKE",
        admin="127.0.0.1:9003",
    )
    assert options.where == "mooncake://127.0.0.1:50051/hpkv"


def test_what_a_url_says() -> None:
    options = parse(
        "mooncake://127.0.0.1:7000/team/kv/?segment=512MiB&host=10.0.0.7&protocol=rdma&devices=mlx5_0,mlx5_1"
        "&metadata=http%3A%2F%2Fmeta%3A8080%2Fmetadata&admin=127.0.0.1:7001"
    )
    assert options == Options(
        master="127.0.0.1:7000",
        prefix="team/kv",
        segment=512 << 20,
        host="10.0.0.7",
        protocol="rdma",
        devices="mlx5_0,mlx5_1",
        metadata="http://meta:8080/metadata",
        admin="127.0.0.1:7001",
    )


@pytest.mark.parametrize(
    ("size", "found"), [("0", 0), ("4096", 4096), ("1KiB", 1024), ("3GiB", 3 << 30), ("2TiB", 2 << 40)]
)
def test_sizes(size: str, found: int) -> None:
    assert parse(f"mooncake://127.0.0.1/p?segment={size}").segment == found


def test_ipv6() -> None:
    options = parse("mooncake://[::1]:7000/p")
    assert (options.master, options.admin, options.host) == ("[::1]:7000", "[::1]:9003", "::1")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mooncake://127.0.0.1/p?segment=lots", "segment=lots is no size"),
        ("mooncake://127.0.0.1/p?segment=4GB", "is no size"),
        ("mooncake://127.0.0.1/p?segments=4GiB", "unknown option segments"),
        ("mooncake://127.0.0.1:port/p", "is no HOST:PORT"),
        ("mooncake://127.0.0.1:70000/p", "is no HOST:PORT"),
        ("mooncake://127.0.0.1/p?protocol=pigeons", "protocol=pigeons: write tcp or rdma"),
        ("mooncake:///p", "is no HOST:PORT"),
        ("mooncake://127.0.0.1/a b", "a prefix has letters"),
        ("mooncake://127.0.0.1/a//b", "a prefix has letters"),
        ("mooncake://127.0.0.1/.*", "a prefix has letters"),
        ("mooncake://nowhere.invalid/p", "there is no way to nowhere.invalid"),
    ],
)
def test_what_cannot_work_is_named(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(url)
