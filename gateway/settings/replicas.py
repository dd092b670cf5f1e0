"""The replicas: where each is, and how they are watched and waited for."""

import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

from engine_adapters import wire
from engine_adapters.agent.keys import Keys, is_key, read_key
from engine_adapters.base import AgentAddress
from engine_adapters.errors import SettingsError as KeysUnusable
from gateway.settings.base import Section, read_text, sendable

_PORTS = re.compile(r"tcp://(?:\[[^\]\s]+\]|[^\s/:\[\]]+):([0-9]{1,5})")


def _zmq_endpoint(endpoint: str) -> str:
    port = _PORTS.fullmatch(endpoint)
    if not re.fullmatch(r"ipc://.+", endpoint) and not (port and 0 < int(port[1]) <= 65535):
        raise ValueError("write tcp://HOST:PORT or ipc://PATH")
    return endpoint


ZmqEndpoint = Annotated[str, AfterValidator(_zmq_endpoint)]


class ServerSettings(Section):
    """Where one engine server is, and what it is: what it may say of itself when it registers."""

    url: AnyHttpUrl
    name: str = Field(
        default="", pattern=r"^[A-Za-z0-9._:-]*$", max_length=128, description="default: host:port of the URL"
    )
    engine: Literal["vllm", "sglang"] = "vllm"
    events: ZmqEndpoint | None = Field(default=None, description="ZeroMQ endpoint of the replica's KV events")
    replay: ZmqEndpoint | None = Field(default=None, description="ZeroMQ endpoint that replays KV events")
    agent: ZmqEndpoint | None = Field(
        default=None,
        description="ZeroMQ endpoint of its agent; the stream is at the next two ports",
    )
    agent_key: str | None = Field(default=None, description="the agent's public key, if it asks for keys")
    ranks: int = Field(default=1, ge=1, le=1024, description="data-parallel ranks of the server")

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, str):  # HPKV_REPLICAS='["http://a:1", …]' and --replica URL
            kind, plus, url = data.partition("+")  # sglang+http://a:1
            data = {"url": url, "engine": kind} if plus and kind.isalpha() else {"url": data}
        if isinstance(data, dict) and data.get("name") in (None, "") and isinstance(data.get("url"), str):
            data = {**data, "name": re.sub(r"^\w+://(.*@)?|/.*$", "", data["url"])}
        return data

    @field_validator("url")
    @classmethod
    def _address_only(cls, url: AnyHttpUrl) -> AnyHttpUrl:
        # It is shown in logs, in /readyz and by check-config.
        if url.username or url.password:
            raise ValueError("credentials don't belong in the URL: send a key with `api_key`")
        try:
            (url.host or "").encode("idna")
        except UnicodeError as error:
            raise ValueError("that host is no name: its parts have 1 to 63 characters") from error
        if url.query or url.fragment:
            raise ValueError("write SCHEME://HOST:PORT/PATH, without ? and #; a key is sent with `api_key`")
        return url

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.replay is not None and self.events is None:
            raise ValueError("replay without events: set both, or none")
        for field, endpoint, ours in (
            ("events", self.events, self.listens),
            ("replay", self.replay, False),
            ("agent", self.agent, False),
        ):
            if endpoint is not None:
                self._check_endpoint(field, endpoint, ours)
        return self

    def _check_endpoint(self, field: str, endpoint: str, ours: bool) -> None:
        if endpoint.startswith("tcp://*:") and not ours:
            hint = " (or set bind_events, for engines that connect to us)" if field == "events" else ""
            raise ValueError(f"{field}: nobody can connect to *: write the engine's own host{hint}")
        port = _PORTS.fullmatch(endpoint)
        sockets = wire.endpoints(endpoint, self.ranks - 1) if field == "agent" else (endpoint,)
        if not all(map(wire.bindable, sockets)):
            raise ValueError(f"{field}: a socket's path has {wire.LONGEST_PATH} bytes at the most")
        if field == "agent":
            if port is not None and int(port[1]) + 3 * self.ranks - 1 > 65535:
                raise ValueError("agent takes three ports, rank r from PORT + 3r on: give a lower one")
            return
        if self.ranks > 1 and (port is None or int(port[1]) + self.ranks - 1 > 65535):
            raise ValueError(f"ranks > 1: {field} must be tcp://HOST:PORT; rank r is at PORT + r")

    @property
    def listens(self) -> bool:
        """Whether the gateway binds `events`, and the engine connects."""
        return False

    def rank_names(self) -> list[str]:
        """What each rank is called."""
        return [f"{self.name}.{rank}" for rank in range(self.ranks)] if self.ranks > 1 else [self.name]


class ReplicaSettings(ServerSettings):
    """One engine server, with what the gateway's operator alone may say of it."""

    api_key: SecretStr | None = Field(default=None, description="sent to the replica as a bearer token")
    api_key_file: Path | None = None
    ca_file: Path | None = Field(default=None, description="PEM bundle that signs the replica's certificate")
    bind_events: bool = Field(
        default=False, description="listen at `events`, for engines that connect rather than bind"
    )
    agent_secret_file: Path | None = Field(default=None, description="file with the gateway's secret key")

    @field_validator("ca_file")
    @classmethod
    def _authorities(cls, file: Path | None) -> Path | None:
        if file is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
            except OSError as error:
                raise ValueError(f"{file}: {error}; give a PEM bundle of certificates") from error
        return file

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("api_key and api_key_file say the same thing: set one")
        self.credential()
        return self

    @model_validator(mode="after")
    def _agent_keys(self) -> Self:
        if self.agent is None and (self.agent_key is not None or self.agent_secret_file is not None):
            raise ValueError("agent_key and agent_secret_file are for an agent: set agent")
        self.agent_address()
        return self

    @property
    def listens(self) -> bool:
        """Whether the gateway binds `events`, and the engine connects."""
        return self.bind_events

    def agent_address(self) -> AgentAddress | None:
        """Where the agent is, that of rank 0.

        Raises:
            ValueError: a key is no key, or one of two is missing.
        """
        if self.agent is None:
            return None
        if self.agent_key is None or self.agent_secret_file is None:
            if self.agent_key is not None or self.agent_secret_file is not None:
                raise ValueError("agent_key and agent_secret_file go together: set both or neither")
            return AgentAddress(self.agent)
        if not is_key(self.agent_key.encode()):
            raise ValueError("agent_key: a public key has 40 characters, as `hpkv agent keys` writes it")
        try:
            secret = read_key(self.agent_secret_file)
        except KeysUnusable as error:
            raise ValueError(f"agent_secret_file: {error}") from None
        return AgentAddress(self.agent, Keys(secret, self.agent_key.encode()))

    def credential(self) -> str | None:
        """The key to send to the replica.

        Raises:
            ValueError: the file can't be read, or the key can't be sent.
        """
        if self.api_key_file is not None:
            try:
                return sendable(read_text(self.api_key_file).strip())
            except ValueError as error:
                raise ValueError(f"api_key_file: {error}") from None
        return sendable(self.api_key.get_secret_value()) if self.api_key is not None else None


class RegistrationSettings(Section):
    """Which replicas may come by themselves, by `POST /v1/replicas` with an admin key."""

    most: int = Field(
        default=32, ge=0, le=1024, description="registered replicas, ranks counted; 0: none may"
    )
    agent_secret_file: Path | None = Field(
        default=None, description="file with the gateway's secret key for agents that ask for keys"
    )

    @field_validator("agent_secret_file")
    @classmethod
    def _secret(cls, file: Path | None) -> Path | None:
        if file is not None:
            try:
                read_key(file)
            except KeysUnusable as error:
                raise ValueError(str(error)) from None
        return file


class TimeoutSettings(Section):
    """Limits towards replicas, in seconds."""

    connect_s: PositiveFloat = 5.0
    first_chunk_s: PositiveFloat = Field(default=300.0, description="from sending to the answer's first byte")
    idle_s: PositiveFloat = Field(default=300.0, description="longest silence in mid-answer")


class ProbeSettings(Section):
    """How replicas are watched."""

    interval_s: PositiveFloat = 1.0
    timeout_s: PositiveFloat = 2.0
    failures: PositiveInt = Field(default=3, description="unanswered probes until a silent replica leaves")
