"""`hpkv cache` on a Mooncake store, as far as Mooncake allows."""

from collections.abc import Iterator

from cache.errors import FolderError
from cache.maintenance import Stored
from cache.stores import root
from cache.stores.maintenance import StoreMaintenance
from cache.stores.mooncake.shelf import MooncakeShelf


class MooncakeMaintenance(StoreMaintenance):
    """A store in a Mooncake pool, seen from outside.

    Clearing everything is one call to the master. All that looks at single pages needs the master's HTTP
    server, which can list them.
    """

    def __init__(self, shelf: MooncakeShelf, kind: str) -> None:
        super().__init__(shelf, kind)
        self._mooncake = shelf

    def collect(self, most_bytes: int | None, older_than: float | None) -> Iterator[Stored]:
        """Remove what clears have left. Raises FolderError for the rest: Mooncake evicts by itself."""
        if most_bytes is not None or older_than is not None:
            raise FolderError(
                f"{self._mooncake.where}: Mooncake keeps no times, and evicts by itself when the segments "
                "that clients lend are full. Lend less memory (segment=…), or clear"
            )
        self._remove_others(self.generation())
        return iter(())

    def clear(self, tenant: int | None) -> Iterator[int]:
        """Living engines follow within seconds; of one tenant, what they write meanwhile may stay."""
        if tenant is not None:
            yield from super().clear(tenant)
            return
        before = self.generation()
        after = root.clear(self._mooncake, self._kind).generation
        yield self._mooncake.remove_generations(f"{before:016x}")
        self._remove_others(after)

    def _remove_others(self, generation: int) -> int:
        return self._mooncake.remove_generations(f"(?!{generation:016x})[0-9a-f]{{16}}")
