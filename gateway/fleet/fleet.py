"""All replicas, and which of them serve a model."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from engine_adapters.base import ModelCard
from gateway.errors import ModelNotFound, Overloaded
from gateway.fleet.probe import Prober
from gateway.fleet.replica import Replica
from gateway.settings import ProbeSettings

NO_REPLICA = (
    "no replica yet: set `replicas` in the settings, start with --replica URL, or let engines register"
)


class Fleet:
    """The replicas behind the gateway. They may come and go; each is watched while it is there."""

    def __init__(self, replicas: Iterable[Replica], probes: ProbeSettings) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._probes = probes
        self._changed: Callable[[Replica], None] = lambda replica: None
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, name: str) -> Replica | None:
        """The replica of this name."""
        return self._replicas.get(name)

    def __getitem__(self, name: str) -> Replica:
        return self._replicas[name]

    def watch(self, changed: Callable[[Replica], None]) -> None:
        """Call this whenever a replica rises, falls or leaves."""
        self._changed = changed
        for replica in self:
            replica.changed = changed

    def add(self, replica: Replica) -> None:
        """Take a replica in, of a name that nobody has. It gets requests as soon as a probe finds it well."""
        replica.changed = self._changed
        # A new dictionary: others may be iterating over this one, the metrics page in a thread.
        self._replicas = {**self._replicas, replica.name: replica}
        self._watch(Prober(replica, self._probes))

    def remove(self, name: str, reason: str) -> None:
        """Let a replica go: it gets no requests any more, and finishes those that it has."""
        left = self._replicas[name]
        self._replicas = {other: replica for other, replica in self._replicas.items() if other != name}
        left.leave(reason)

    @property
    def ready(self) -> bool:
        """Whether any replica can take a request."""
        return any(replica.up for replica in self)

    @property
    def trouble(self) -> str:
        """Why no replica can take a request; empty where one can."""
        if not self._replicas:
            return NO_REPLICA
        return "" if self.ready else "no replica is up"

    def serving(self, model: str) -> list[Replica]:
        """The replicas which are up and serve this model.

        Raises:
            ModelNotFound: no replica, up or not, is known to serve it.
            Overloaded: some do, and none of them is up.
        """
        known = [replica for replica in self if model in replica.models]
        serving = [replica for replica in known if replica.up]
        if serving:
            return serving
        if not self._replicas:
            raise Overloaded(f"The gateway has {NO_REPLICA}.")
        if known or not self.ready:
            raise Overloaded(
                f"No replica of the model '{model}' is healthy at the moment; try again soon."
                if known
                else "No replica is healthy at the moment; try again soon."
            )
        raise ModelNotFound(
            f"The model '{model}' does not exist. Available: {', '.join(sorted(self.models())) or 'none'}.",
            param="model",
        )

    def models(self) -> dict[str, ModelCard]:
        """Model id → card, over all replicas that are up; the first replica's card stands for all."""
        cards: dict[str, ModelCard] = {}
        for replica in self:
            if replica.up:
                cards = {**replica.models, **cards}
        return cards

    async def start(self) -> None:
        """Probe all replicas once, then keep watching them."""
        probers = [Prober(replica, self._probes) for replica in self]
        await asyncio.gather(*(prober.probe() for prober in probers))
        for prober in probers:
            self._watch(prober)

    async def stop(self) -> None:
        """End the watching."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _watch(self, prober: Prober) -> None:
        task = asyncio.create_task(prober.run(), name=f"probe {prober.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
