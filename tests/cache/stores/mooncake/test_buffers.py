"""What is registered, and for how long; the client is a fake that holds the caller to RDMA's rules."""

from cache.memory import BLOCK, allocate
from cache.stores.mooncake.buffers import Buffers, Headers


class Rules:
    """Refuses what overlaps, and forgets only what it knows."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.calls = 0

    def register_buffer(self, address: int, size: int) -> int:
        if any(address < start + length and start < address + size for start, length in self.known.items()):
            return -600
        self.known[address] = size
        self.calls += 1
        return 0

    def unregister_buffer(self, address: int) -> int:
        del self.known[address]
        return 0

    def covers(self, address: int, size: int) -> bool:
        return any(
            start <= address and address + size <= start + length for start, length in self.known.items()
        )


def test_a_pool_is_registered_once_and_whole() -> None:
    client, pool = Rules(), allocate(64 * BLOCK)
    buffers = Buffers(client, large=32 * BLOCK)
    for at in range(0, 64, 2):
        parts = [pool[at * BLOCK : (at + 1) * BLOCK], pool[(at + 1) * BLOCK : (at + 2) * BLOCK]]
        with buffers.registered([parts]) as ((first, second),):
            assert client.covers(first, BLOCK)
            assert client.covers(second, BLOCK)
            assert second == first + BLOCK
    assert client.calls == 1
    assert list(client.known.values()) == [64 * BLOCK]
    buffers.close()
    assert client.known == {}


def test_a_small_buffer_is_registered_while_somebody_uses_it() -> None:
    client, memory = Rules(), allocate(4 * BLOCK)
    buffers = Buffers(client, large=32 * BLOCK)
    with buffers.registered([[memory[:BLOCK]]]) as ((first,),):
        with buffers.registered([[memory[BLOCK:]]]):
            assert client.calls == 1
        assert client.covers(first, BLOCK)
    assert client.known == {}


def test_the_addresses_are_the_bytes() -> None:
    import ctypes

    memory = allocate(2 * BLOCK)
    memory[BLOCK : BLOCK + 5] = b"hello"
    with Buffers(Rules(), large=BLOCK).registered([[memory[BLOCK : BLOCK + 5]]]) as ((address,),):
        assert ctypes.string_at(address, 5) == b"hello"


def test_what_cannot_be_registered_is_used_all_the_same() -> None:
    client = Rules()
    client.register_buffer(0, 1 << 63)
    calls = client.calls
    with Buffers(client, large=BLOCK).registered([[allocate(BLOCK)]]) as ((address,),):
        assert address
    assert client.calls == calls
    assert client.known == {0: 1 << 63}


def test_a_caller_who_always_brings_new_pools() -> None:
    client = Rules()
    buffers = Buffers(client, large=2 * BLOCK)
    pools = [allocate(2 * BLOCK) for _ in range(100)]
    for pool in pools:
        with buffers.registered([[pool[:BLOCK]]]) as ((address,),):
            assert client.covers(address, BLOCK)
    assert len(client.known) == 32


def test_two_calls_never_share_headers() -> None:
    client = Rules()
    buffers = Buffers(client, large=1 << 30)
    headers = Headers(buffers, calls=2, pages=3)
    with headers.some(3) as one, headers.some(2) as two:
        blocks = [*one, *two]
        with buffers.registered([blocks]) as (addresses,):
            assert all(client.covers(address, BLOCK) for address in addresses)
        for number, block in enumerate(blocks):
            assert block.nbytes == BLOCK
            block[:] = bytes([number]) * BLOCK
        assert [block[0] for block in blocks] == list(range(5))
    with headers.some(3) as again:
        assert len(again) == 3
    assert client.calls == 1
    assert list(client.known.values()) == [6 * BLOCK]
