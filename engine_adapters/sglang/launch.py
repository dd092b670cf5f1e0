"""`hpkv launch sglang`: check what can be known before the model loads, and say how SGLang is called."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_adapters import launching
from engine_adapters.flags import Endpoints, refuse_clashes, value_of
from engine_adapters.launching import Needs

from . import flags

NEEDS = Needs("SGLang", "sglang", (0, 5, 23), ("xxhash", "cache.prefix", "engine_adapters.sglang.flags"))
PORT = "30000"
"""Where SGLang listens if nobody says."""


@dataclass(frozen=True)
class Launch:
    """An SGLang server to be: its model, where its events are, and flags of the user's own."""

    model: str
    endpoints: Endpoints
    flags: tuple[str, ...] = ()


def command(launch: Launch, executable: Path) -> list[str]:
    """Return the command line. Raises SettingsError for a flag that would undo one of ours."""
    refuse_clashes(launch.flags, flags.CLASHES)
    ours = flags.watched(launch.endpoints)
    return [str(executable), "serve", f"--model-path={launch.model}", *ours, *launch.flags]


def check(executable: Path, environ: Mapping[str, str]) -> None:
    """Refuse what can't work, in seconds. Raises SettingsError."""
    launching.check_environment(executable, NEEDS, environ)


def announcement(launch: Launch) -> str:
    """Return how the gateway is told of it."""
    entry = launching.entry(value_of(launch.flags, "--port", PORT), "sglang", launch.endpoints)
    return f"hpkv launch: for the gateway's replicas: {entry}"
