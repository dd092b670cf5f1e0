"""An engine's server to be, with our part in it: what is the same for every engine."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from engine_adapters import launching, wire
from engine_adapters.agent import door
from engine_adapters.agent.keys import public_of
from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints
from engine_adapters.launching import Needs, Section, Server
from engine_adapters.levels import check_folder
from engine_adapters.settings import Settings, Tiers, thresholds_of_others
from engine_adapters.tiers import NONE

AGENT = "--agent, which takes its port and the next two"
_LOOPBACK = re.compile(r"https?://(127\.|localhost|\[::1\])")


@dataclass(frozen=True)
class Launch(ABC):
    """A server to be: its model, its tiers, where its events are, and flags of the user's own."""

    engine: ClassVar[str]
    port: ClassVar[str]
    """Where it listens if nobody says."""
    threshold_variable: ClassVar[str]

    model: str
    tiers: Tiers
    endpoints: Endpoints
    flags: tuple[str, ...] = ()
    agent: str = ""
    """Where its agent is to answer."""
    socket: str = ""
    """The same where nobody says; empty: nowhere. Only with tiers."""
    gateway: Section = field(default_factory=dict)
    """`launching.gateway_section`."""

    def __post_init__(self) -> None:
        launching.refuse_shared_ports(self.endpoints, self.server(self.flags).ranks)

    @abstractmethod
    def settings(self, environ: Mapping[str, str]) -> Settings:
        """What the engine will read. Raises SettingsError."""

    @staticmethod
    @abstractmethod
    def server(flags: Sequence[str]) -> Server:
        """Where it listens, by its flags. Raises SettingsError."""

    def has_agent(self, settings: Settings) -> bool:
        """Whether the engine will have one, if it is given an address."""
        return settings.mode != NONE

    def for_tiers(self) -> list[str]:
        """Options that are asked for and do nothing without tiers."""
        return [name for name, given in {"--agent": self.agent, "--gateway": self.gateway}.items() if given]

    def configuration(self) -> dict[str, Any]:
        """As `load_settings` takes it."""
        bind = self.agent or self.socket
        sections = {"agent": {"bind": bind} if bind else {}, "gateway": self.gateway}
        return self.tiers.configuration() | {name: section for name, section in sections.items() if section}

    def tiered(self, environ: Mapping[str, str]) -> bool:
        """Whether tiers are on, which the environment alone may have set. Raises SettingsError."""
        if self.settings(environ).mode != NONE:
            return True
        if idle := self.for_tiers():
            raise SettingsError(f"{idle[0]} is for tiers, and none is on: give --tiers too, or leave it out")
        return False

    def announcement(self, environ: Mapping[str, str]) -> str:
        """What is on, and how the gateway is told of it."""
        settings = self.settings(environ)
        others = thresholds_of_others(environ, self.threshold_variable)
        unread = "".join(
            f"{name} isn't read by this engine, but {self.threshold_variable}; " for name in others
        )
        # The threshold is for what is ours, as the agent is.
        loads = f", loads of {settings.token_threshold} tokens and more" if self.has_agent(settings) else ""
        said = f"hpkv launch: tiers {settings.mode}{loads}; {unread}"
        agent, key_file = settings.agent.bind or "", settings.agent.key_file
        if settings.gateway is not None and self.has_agent(settings):
            near = _LOOPBACK.match(settings.gateway.url) or not self.endpoints.events.startswith("ipc:")
            hint = "" if near else "; if that is another machine, give --events, --replay and --agent ports"
            place = f"{settings.gateway.url} as {settings.gateway.replica_url}"
            return f"{said}registers at {place}, its agent at {agent or 'none'}{hint}"
        key = public_of(key_file) if key_file is not None else ""
        told = (agent, key) if self.has_agent(settings) else ()
        entry = launching.entry(self.server(self.flags), self.engine, self.endpoints, *told)
        return f"{said}for the gateway's replicas: {entry}"


def check(one: Launch, needs: Needs, executable: Path, environ: Mapping[str, str]) -> None:
    """Refuse what can't work, in seconds. Raises SettingsError."""
    settings, server = one.settings(environ), one.server(one.flags)
    _require_model(one.model)
    if settings.ssd is not None:
        check_folder(settings.ssd.path)
    door.check(settings.agent)
    for flag, endpoint in (("--events", one.endpoints.events), ("--replay", one.endpoints.replay)):
        launching.require_bindable(flag, launching.rank_endpoints(endpoint, server.ranks))
    if settings.agent.bind is not None:
        for rank in range(server.ranks):
            launching.require_bindable(AGENT, wire.endpoints(settings.agent.bind, rank))
    stores = (settings.shared.package,) if settings.shared is not None else ()
    launching.check_environment(executable, replace(needs, imports=(*needs.imports, *stores)), environ)


def _require_model(model: str) -> None:
    """Engines take a folder that isn't there for a hub's name, and say so late."""
    if model.startswith(("/", "./", "../", "~")) and not Path(model).expanduser().exists():
        raise SettingsError(
            f"{model}: no such folder; name the one that holds the model's config.json, or a hub's OWNER/NAME"
        )
