"""A replica to be, on this machine's CPU: what is the same for every engine."""

from dataclasses import dataclass, field
from pathlib import Path

from engine_adapters.settings import Tiers
from engine_adapters.tiers import NONE


@dataclass(frozen=True)
class LocalReplica:
    """One replica to be.

    `sockets` is a folder of this fleet's own for unix sockets; its path must be short, for theirs end at 107
    bytes. `cores` are the CPU cores it computes on; empty leaves the choice to the engine. `extra` ends the
    command line, so that it wins.
    """

    name: str
    model: str
    served_name: str
    port: int
    sockets: Path
    cores: tuple[int, ...] = ()
    tiers: Tiers = field(default_factory=Tiers)
    extra: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Where it answers HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def events(self) -> str:
        """Endpoint of its KV events. Engines bind `ipc://` and addresses with a `*`, and connect to
        others."""
        return f"ipc://{self.sockets}/{self.name}.events"

    @property
    def replay(self) -> str:
        """Endpoint that sends missed KV events again."""
        return f"ipc://{self.sockets}/{self.name}.replay"

    @property
    def agent(self) -> str:
        """Endpoint of its agent, which comes with tiers; empty: it has none."""
        return f"ipc://{self.sockets}/{self.name}.agent" if self.tiers.mode != NONE else ""

    @property
    def local(self) -> bool:
        """Whether the model is a folder, not a hub's name."""
        return Path(self.model).is_dir()
