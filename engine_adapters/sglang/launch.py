"""`hpkv launch sglang`: check what can be known before the model loads, and say how SGLang is called."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cache.sizes import format_size
from engine_adapters import launch, launching, memory
from engine_adapters.errors import SettingsError
from engine_adapters.flags import refuse_clashes, value_of
from engine_adapters.launching import Needs, Server
from engine_adapters.settings import Settings

from . import flags
from .settings import THRESHOLD_VARIABLE, load_settings

NEEDS = Needs("SGLang", "sglang", (0, 5, 23), ("xxhash", "cache.prefix", "engine_adapters.sglang.settings"))
_TP = ("--tp-size", "--tp", "--tensor-parallel-size")
_PP = ("--pp-size", "--pp", "--pipeline-parallel-size")
_DP = ("--dp-size", "--dp", "--data-parallel-size")
_CONTEXT = (
    ("--dcp-size", "--decode-context-parallel-size"),
    ("--attn-cp-size", "--attention-context-parallel-size"),
)
_NODES = ("--nnodes",)


@dataclass(frozen=True)
class Launch(launch.Launch):
    """An SGLang server to be."""

    engine: ClassVar[str] = "sglang"
    threshold_variable: ClassVar[str] = THRESHOLD_VARIABLE
    port: ClassVar[str] = "30000"

    def settings(self, environ: Mapping[str, str]) -> Settings:
        """What the engine will read. Raises SettingsError."""
        return load_settings(self.configuration(), environ)

    def has_agent(self, settings: Settings) -> bool:
        """It lives in our storage backend, which a host tier alone doesn't need."""
        return settings.ssd is not None or settings.shared is not None

    @staticmethod
    def server(flags: Sequence[str]) -> Server:
        """Where SGLang listens, by its flags. Raises SettingsError."""
        host = value_of(flags, "--host", "127.0.0.1")
        return Server(
            scheme="https" if value_of(flags, "--ssl-certfile", "") else "http",
            host="" if host in ("0.0.0.0", "::") else host,
            port=value_of(flags, "--port", Launch.port),
            ranks=_number(flags, _DP),
        )


def command(one: Launch, executable: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the command line. Raises SettingsError, also for a flag that would undo one of ours."""
    refuse_clashes(one.flags, flags.CLASHES)
    ours = flags.watched(one.endpoints)
    if one.tiered(environ):
        settings = one.settings(environ)
        if not one.has_agent(settings) and (idle := one.for_tiers()):
            raise SettingsError(f"{idle[0]} is for tiers below SGLang's own: add ssd or shared")
        refuse_clashes(one.flags, flags.TIER_CLASHES)
        if one.has_agent(settings):
            layout = value_of(one.flags, "--hicache-mem-layout", flags.LAYOUTS[0])
            flags.refuse_unserved(layout, math.prod(_number(one.flags, names) for names in _CONTEXT))
        ours += flags.tiered(settings, one.configuration(), _ranks(one))
    return [str(executable), "serve", f"--model-path={one.model}", *ours, *one.flags]


def notice(one: Launch, environ: Mapping[str, str]) -> str:
    """What of `host` is left out, if anything is. Raises SettingsError."""
    settings = one.settings(environ)
    if settings.host is None:
        return ""
    ranks = _ranks(one)
    each = flags.each_host(settings, ranks)
    taken = ranks * each * flags.GB
    if taken == settings.host:
        return ""
    who = f"{ranks} ranks take {each} GB each" if ranks > 1 else f"it takes {each} GB"
    return (
        f"host={format_size(settings.host)}: SGLang counts each rank's memory in whole GB (10^9 bytes), "
        f"so {who}, in all {taken // flags.GB} of {settings.host / flags.GB:.4g} GB"
    )


def check(one: Launch, executable: Path, environ: Mapping[str, str]) -> None:
    """Refuse what can't work, in seconds. Raises SettingsError."""
    memory.require((one.settings(environ).host or 0) // _number(one.flags, _NODES))
    launch.check(one, NEEDS, executable, environ)
    launching.require_bindable("--port", [one.server(one.flags).address])


def _ranks(one: Launch) -> int:
    """Those that share `host`."""
    return _number(one.flags, _TP) * _number(one.flags, _PP)


def _number(flags: Sequence[str], names: Sequence[str]) -> int:
    """How many ranks a flag, which has several names, asks for. Raises SettingsError."""
    given = next((value for name in names if (value := value_of(flags, name, ""))), "1")
    if not given.isdecimal() or not int(given):
        raise SettingsError(f"{names[0]}: {given} is no number of ranks")
    return int(given)
