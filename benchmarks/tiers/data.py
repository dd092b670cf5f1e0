"""Pages to move: equal for all contenders, never the same bytes twice in a region."""

import hashlib
import os
from pathlib import Path

from cache.keys import Base, Page
from cache.memory import allocate

BASE = Base(
    weights="bench",
    kv_dtype="bfloat16",
    kv_layout="bench",
    attention_backend="bench",
    page_tokens=16,
    engine="bench",
)
SPACE = BASE.namespace()


def key(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def page(number: int) -> Page:
    return Page(key(number), number, 16 * (number + 1))


def buffer(count: int, size: int) -> memoryview:
    """Prefaulted memory of `count` pages of random bytes, which no disk can compress."""
    memory = allocate(count * size, prefault=True)
    block = os.urandom(1 << 20)
    for at in range(0, count * size, len(block)):
        part = block[: count * size - at]
        memory[at : at + len(part)] = part
    for number in range(count):
        memory[number * size : number * size + 8] = number.to_bytes(8, "little")
    return memory


def cut(memory: memoryview, size: int) -> list[memoryview]:
    return [memory[at : at + size] for at in range(0, memory.nbytes, size)]


def drop_caches() -> bool:
    """Write back and drop the kernel's page cache; False without the right to."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True
