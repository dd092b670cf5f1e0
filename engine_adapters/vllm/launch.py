"""`hpkv launch vllm`: check all that can be known before the model loads, and say how vLLM is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from engine_adapters import launch, launching, memory
from engine_adapters.errors import SettingsError
from engine_adapters.flags import refuse_clashes, value_of
from engine_adapters.launching import Needs, Server
from engine_adapters.settings import Settings

from . import flags
from .settings import THRESHOLD_VARIABLE, load_settings

NEEDS = Needs("vLLM", "vllm", (0, 32), ("xxhash", "cache.prefix", "engine_adapters.vllm.settings"))

HEADLESS = "--headless"
"""An engine without an HTTP server."""


@dataclass(frozen=True)
class Launch(launch.Launch):
    """A vLLM server to be."""

    engine: ClassVar[str] = "vllm"
    threshold_variable: ClassVar[str] = THRESHOLD_VARIABLE
    port: ClassVar[str] = "8000"

    page_tokens: int | None = None
    """A multiple of vLLM's blocks; None: one block."""

    def settings(self, environ: Mapping[str, str]) -> Settings:
        """What the engine will read. Raises SettingsError."""
        return load_settings(self.configuration(), environ)

    def for_tiers(self) -> list[str]:
        """Options that are asked for and do nothing without tiers."""
        return [*(["--page-tokens"] if self.page_tokens else []), *super().for_tiers()]

    @staticmethod
    def server(flags: Sequence[str]) -> Server:
        """Where vLLM listens, by its flags. Raises SettingsError."""
        host = value_of(flags, "--host", "")
        ranks = value_of(flags, "--data-parallel-size", value_of(flags, "-dp", "1"))
        if not ranks.isdecimal() or not int(ranks):
            raise SettingsError(f"--data-parallel-size {ranks}: write how many, such as 2")
        return Server(
            scheme="https" if value_of(flags, "--ssl-certfile", "") else "http",
            host="" if host in ("0.0.0.0", "::") else host,
            port=value_of(flags, "--port", Launch.port),
            ranks=int(ranks),
        )


def command(one: Launch, executable: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the command line. Raises SettingsError, also for a flag that would undo one of ours."""
    refuse_clashes(one.flags, flags.CLASHES)
    ours, page = flags.watched(one.endpoints), _page(one)
    if one.tiered(environ):
        if one.settings(environ).lasts:
            refuse_clashes(one.flags, flags.LASTING_CLASHES)
        ours += flags.tiered({**page, **one.configuration()})
    return [str(executable), "serve", one.model, *ours, *one.flags]


def _page(one: Launch) -> dict[str, int]:
    """What vLLM is told of a page's size."""
    if one.page_tokens is None:
        return {}
    block = value_of(one.flags, "--block-size", "1")
    if block.isdecimal() and one.page_tokens % int(block):
        raise SettingsError(
            f"--page-tokens={one.page_tokens}: a page is whole blocks, of {block} tokens here"
        )
    return {"block_size": one.page_tokens}


def check(one: Launch, executable: Path, environ: Mapping[str, str]) -> None:
    """Refuse what can't work, in seconds. Raises SettingsError."""
    host = one.settings(environ).host
    if host is not None:
        memory.require_shared(host)
    launch.check(one, NEEDS, executable, environ)
    if HEADLESS not in one.flags:
        launching.require_bindable("--port", [one.server(one.flags).address])
