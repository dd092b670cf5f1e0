"""Command lines of engines: where events are bound, and flags that can't be mixed with ours."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_adapters.errors import SettingsError


@dataclass(frozen=True)
class Endpoints:
    """Where an engine binds KV events and their replay: `ipc://PATH`, or `tcp://*:PORT` (rank r: PORT + r).

    Engines connect to any other address instead of binding it; a gateway that connects too hears nothing.
    """

    events: str
    replay: str

    def __post_init__(self) -> None:
        for endpoint in (self.events, self.replay):
            if not re.fullmatch(r"ipc://.+|tcp://\*:\d{1,5}", endpoint):
                raise SettingsError(
                    f"an engine can't bind {endpoint}: write ipc://PATH for a gateway on this machine "
                    "or tcp://*:PORT (events carry prompts in clear: keep that behind a firewall)"
                )
        if self.events == self.replay:
            raise SettingsError(f"events and replay can't both be at {self.events}: give replay another")


def refuse_clashes(flags: Sequence[str], clashes: Mapping[str, str]) -> None:
    """Raise SettingsError if one of `flags`, also abbreviated or in dotted form, would undo one of ours.

    `clashes` says of each what to do instead.
    """
    for flag in flags:
        name = re.split(r"[=.]", flag, maxsplit=1)[0].replace("_", "-")
        for clash, remedy in clashes.items():
            if name.startswith("--") and len(name) > 5 and clash.startswith(name):
                raise SettingsError(f"{flag.partition('=')[0]} clashes with what hpkv sets: {remedy}")


def value_of(flags: Sequence[str], name: str, default: str) -> str:
    """Return the last value that `flags` give to `name`, as `NAME=VALUE` or `NAME VALUE`."""
    following = default
    for flag in reversed(flags):
        key, equals, value = flag.partition("=")
        if key == name:
            return value if equals else following
        following = flag
    return default
