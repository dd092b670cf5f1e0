import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("8 GiB", 8 << 30),
        ("1.5MiB", 3 << 19),
        ("8GB", 8 * 10**9),
        ("2kB", 2000),
        ("3TiB", 3 << 40),
        ("512", 512),
        ("512B", 512),
        (512, 512),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["8G", "8gib", "-1GiB", "", "GiB", "1e9", "8GiBs", 1.5, None, True, "0x10"])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is no size: write a number and a unit, such as 8GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(8 << 30, "8GiB"), (8 * 10**9, "8GB"), (3 << 29, "1536MiB"), (8193, "8193B"), (0, "0B")],
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 1 << 50))
def test_nothing_is_lost_on_the_way_back(size: int) -> None:
    assert parse_size(format_size(size)) == size
