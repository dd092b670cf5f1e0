from pathlib import Path

import pytest

from engine_adapters.errors import SettingsError
from engine_adapters.settings import Tiers
from engine_adapters.tiers import format_tiers, parse_tiers


def test_a_line_of_all_tiers() -> None:
    tiers = parse_tiers("host=8GiB,ssd=/data/kv:200GiB,shared=s3://bucket/kv")
    assert tiers.mode == "gpu+host+ssd+shared"
    assert tiers.host == 8 << 30
    assert tiers.ssd is not None
    assert (tiers.ssd.path, tiers.ssd.cap) == (Path("/data/kv"), 200 << 30)
    assert tiers.shared is not None
    assert (tiers.shared.url, tiers.shared.cap) == ("s3://bucket/kv", None)


@pytest.mark.parametrize(
    ("shared", "url", "cap"),
    [
        ("az://container:50051", "az://container:50051", None),
        ("s3://bucket/kv:5TiB", "s3://bucket/kv", 5 << 40),
        ("/mnt/kv:5TiB", "/mnt/kv", 5 << 40),
        ("/mnt/a:b", "/mnt/a:b", None),
        ("/mnt/a,b", "/mnt/a,b", None),
    ],
)
def test_shared_may_have_a_cap(shared: str, url: str, cap: int | None) -> None:
    tiers = parse_tiers(f"host=1GiB,shared={shared}")
    assert tiers.shared is not None
    assert (tiers.shared.url, tiers.shared.cap) == (url, cap)


def test_paths_begin_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiers = parse_tiers("host=1GiB,ssd=kv:1GiB")
    assert tiers.ssd is not None
    assert tiers.ssd.path == tmp_path / "kv"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("host=8GiB,sdd=/data/kv:1GiB", r"'sdd' is no tier; did you mean ssd\?"),
        ("", "'' is no tier"),
        ("host", "'host' has no value"),
        ("host=8G", "host: '8G' is no size"),
        ("host=1GiB,host=2GiB", "host is given twice"),
        ("gpu,host=8GiB", "gpu is always there"),
        ("host=8GiB,shared=/mnt/kv:50T", "shared=/mnt/kv:50T: '50T' is no size"),
        ("host=8GiB,shared=/mnt/kv:5000", "shared=/mnt/kv:5000: '5000' is no size"),
        ("host=8GiB,ssd=/data/kv", "ssd=/data/kv has no size: write ssd=PATH:SIZE"),
        ("ssd=/data/kv:1GiB", "ssd loads through host memory"),
        ("host=8GiB,ssd=s3://bucket/kv:1GiB", r".*s3://bucket/kv is no path, .*a store's URL is for shared"),
        ("host=8GiB,shared=s3:/bucket/kv", r".*s3:/bucket/kv is no path, .*or SCHEME://"),
        ("host=8GiB,shared=ftp://x", r"shared\.url: write a folder"),
    ],
)
def test_a_line_that_cannot_be(line: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"tiers: {message}"):
        parse_tiers(line)


@pytest.mark.parametrize(
    "line",
    [
        "gpu",
        "host=8GiB",
        "host=8GiB,ssd=/data/kv:200GiB",
        "host=1536MiB,shared=/mnt/kv:5TiB",
        "host=8GB,ssd=/a:b,c:1GiB,shared=az://container:50051",
    ],
)
def test_the_way_back(line: str) -> None:
    assert format_tiers(parse_tiers(line)) == line


def test_the_gpu_alone() -> None:
    assert parse_tiers("gpu") == Tiers()


def test_what_a_line_cannot_say_is_not_said() -> None:
    tiers = Tiers.model_validate({"host": "1GiB", "ssd": {"path": "/d", "cap": "1GiB", "free_floor": "2GiB"}})
    with pytest.raises(SettingsError, match="doesn't say all that is set"):
        format_tiers(tiers)
