from cache.memory import BLOCK, aligned, allocate, gather, padded, scatter, total


def test_allocated_memory_is_aligned() -> None:
    assert aligned([allocate(2 * BLOCK), allocate(BLOCK, prefault=True)])


def test_what_direct_io_can_not_use() -> None:
    memory = allocate(3 * BLOCK)
    assert not aligned([memory[1 : BLOCK + 1]])
    assert not aligned([memory[: BLOCK - 1]])
    assert not aligned([memory[:BLOCK], memory[BLOCK + 512 : 2 * BLOCK + 512]])


def test_sizes() -> None:
    assert [padded(size) for size in (0, 1, BLOCK, BLOCK + 1)] == [0, BLOCK, BLOCK, 2 * BLOCK]
    assert total([allocate(3), allocate(5)]) == 8


def test_gather_and_scatter_are_inverse() -> None:
    parts = [memoryview(bytearray(b"abc")), memoryview(bytearray(b"defgh"))]
    whole = allocate(10)
    gather(parts, whole)
    assert bytes(whole[:8]) == b"abcdefgh"
    back = [memoryview(bytearray(5)), memoryview(bytearray(3))]
    scatter(whole, back)
    assert [bytes(part) for part in back] == [b"abcde", b"fgh"]
