"""What this engine has written lately."""

from cache.stores.written import Written


def known(written: Written) -> dict[int, int]:
    found = written.known()
    return dict(zip(found.prefix_keys.tolist(), found.end_tokens.tolist(), strict=True))


def test_tells_what_came_and_stayed() -> None:
    written = Written()
    written.add([(1 << 63, 16), (2, 32), (3, 48), (2, 32)])
    assert known(written) == {1 << 63: 16, 2: 32, 3: 48}
    written.remove([(2, 32)])
    assert known(written) == {1 << 63: 16, 3: 48}
    written.add([(2, 32)])
    assert known(written) == {1 << 63: 16, 2: 32, 3: 48}
    written.forget()
    assert known(written) == {}


def test_keeps_the_newest() -> None:
    written = Written(capacity=4)
    written.add([(number, 16 * number) for number in range(1, 11)])
    assert known(written) == {7: 112, 8: 128, 9: 144, 10: 160}
