"""`hpkv launch vllm`: check all that can be known before the model loads, and say how vLLM is called."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine_adapters import launching, shared_memory
from engine_adapters.flags import Endpoints, refuse_clashes, value_of
from engine_adapters.launching import Needs
from engine_adapters.settings import Settings, Tiers
from engine_adapters.tiers import NONE

from . import flags
from .settings import load_settings

NEEDS = Needs("vLLM", "vllm", (0, 32), ("xxhash", "cache.prefix", "engine_adapters.vllm.settings"))
PORT = "8000"
"""Where vLLM listens if nobody says."""


@dataclass(frozen=True)
class Launch:
    """A vLLM server to be: its model, its tiers, where its events are, and flags of the user's own."""

    model: str
    tiers: Tiers
    endpoints: Endpoints
    flags: tuple[str, ...] = ()
    page_tokens: int | None = None
    """A multiple of vLLM's blocks; None: one block."""

    def settings(self, environ: Mapping[str, str]) -> Settings:
        """What the engine will read. Raises SettingsError."""
        return load_settings(self.tiers.configuration(), environ)


def command(launch: Launch, executable: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the command line. Raises SettingsError, also for a flag that would undo one of ours."""
    refuse_clashes(launch.flags, flags.CLASHES)
    ours = flags.watched(launch.endpoints)
    if launch.settings(environ).mode != NONE:  # which the environment alone may have set
        page = {"block_size": launch.page_tokens} if launch.page_tokens else {}
        ours += flags.tiered({**page, **launch.tiers.configuration()})
    return [str(executable), "serve", launch.model, *ours, *launch.flags]


def check(launch: Launch, executable: Path, environ: Mapping[str, str]) -> None:
    """Refuse what can't work, in seconds. Raises SettingsError."""
    settings = launch.settings(environ)
    if settings.host is not None:
        shared_memory.require(settings.host)
    stores = (settings.shared.package,) if settings.shared is not None else ()
    launching.check_environment(executable, replace(NEEDS, imports=(*NEEDS.imports, *stores)), environ)


def announcement(launch: Launch, environ: Mapping[str, str]) -> str:
    """Return what is on, and how the gateway is told of it."""
    settings = launch.settings(environ)
    entry = launching.entry(value_of(launch.flags, "--port", PORT), "vllm", launch.endpoints)
    return (
        f"hpkv launch: tiers {settings.mode}, loads of {settings.token_threshold} tokens and more; "
        f"for the gateway's replicas: {entry}"
    )
