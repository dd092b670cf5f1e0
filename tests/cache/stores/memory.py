"""A shelf in memory, with a clock that tests set."""

from collections.abc import Iterator, Sequence

from cache.stores.shelf import NEW, Blob, Entry, Missing, Shelf


class Memory(Shelf):
    where = "memory"
    batch = 1000

    def __init__(self) -> None:
        self.things: dict[str, Blob] = {}
        self.time = 1_000_000.0
        self.writes = 0

    def entries(self) -> Iterator[Entry]:
        for name, blob in list(self.things.items()):
            yield Entry(name, len(blob.data), blob.modified)

    def get(self, name: str, size: int | None = None) -> Blob:
        if name not in self.things:
            raise Missing(name)
        blob = self.things[name]
        return blob._replace(data=blob.data[:size])

    def put(self, name: str, data: bytes, over: str) -> bool:
        if (self.things[name].version if name in self.things else NEW) != over:
            return False
        self.writes += 1
        self.things[name] = Blob(data, self.time, str(self.writes))
        return True

    def remove(self, names: Sequence[str]) -> list[bool]:
        return [self.things.pop(name, None) is not None for name in names]

    def now(self) -> float:
        return self.time
