import random

import pytest

from cache.memory import allocate
from cache.record import HEADER_BYTES, Stamp, Verdict, check, parse, seal
from cache.testing import BASE, PAGE_BYTES, SPACE, content, key, page

STAMP = Stamp(generation=2**63 + 5, sequence=7, written=1_700_000_000)


def sealed(number: int = 1) -> tuple[memoryview, memoryview]:
    header, payload = allocate(HEADER_BYTES), content(number)
    seal(header, SPACE, page(number, tenant=2**64 - 1), [payload], STAMP)
    return header, payload


def test_a_header_says_what_was_sealed() -> None:
    header, _ = sealed()
    verdict, found = parse(header)
    assert verdict is Verdict.WHOLE
    assert found is not None
    assert (found.namespace, found.page, found.stamp, found.length) == (
        SPACE,
        page(1, tenant=2**64 - 1),
        STAMP,
        PAGE_BYTES,
    )


def test_parts_and_whole_have_the_same_hash() -> None:
    header, payload = sealed()
    parts = [payload[:100], payload[100:5000], payload[5000:]]
    assert check(header, parts, SPACE, key(1), STAMP.generation) is Verdict.WHOLE


def test_every_single_bit_counts() -> None:
    header, payload = sealed()
    chance = random.Random(1)
    for _ in range(300):
        target, size = (header, HEADER_BYTES) if chance.random() < 0.5 else (payload, PAGE_BYTES)
        at, bit = chance.randrange(size), 1 << chance.randrange(8)
        target[at] ^= bit
        assert check(header, [payload], SPACE, key(1), STAMP.generation) is not Verdict.WHOLE
        target[at] ^= bit
    assert check(header, [payload], SPACE, key(1), STAMP.generation) is Verdict.WHOLE


@pytest.mark.parametrize(
    ("space", "wanted", "generation", "length", "verdict"),
    [
        (BASE.namespace(lora="x"), 1, STAMP.generation, PAGE_BYTES, Verdict.NAMESPACE),
        (SPACE, 1, STAMP.generation + 1, PAGE_BYTES, Verdict.GENERATION),
        (SPACE, 2, STAMP.generation, PAGE_BYTES, Verdict.KEY),
        (SPACE, 1, STAMP.generation, PAGE_BYTES - 1, Verdict.LENGTH),
    ],
)
def test_a_whole_record_of_something_else(
    space: bytes, wanted: int, generation: int, length: int, verdict: Verdict
) -> None:
    header, payload = sealed()
    assert check(header, [payload[:length]], space, key(wanted), generation) is verdict  # type: ignore[arg-type]


def test_zeros_are_no_record() -> None:
    assert parse(allocate(HEADER_BYTES)) == (Verdict.NO_RECORD, None)


def test_another_versions_record_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache.record.FORMAT", 2)
    header, _ = sealed()
    monkeypatch.undo()
    assert parse(header) == (Verdict.OTHER_FORMAT, None)
