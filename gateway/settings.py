"""The gateway's settings: one model; flags > environment (`HPKV_SECTION__KEY`) > file > defaults."""

import difflib
import hashlib
import ipaddress
import os
import re
import ssl
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError as SourceError


class SettingsError(Exception):
    """The settings can't be used; the message names each setting at fault and what to write instead."""


class Section(BaseModel):
    """Part of the settings: an unknown key is an error, and nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text") from None


def _sendable(key: str) -> str:
    """The key, if a header can carry it; an error must not show it."""
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ValueError("a key is one word of printable ASCII: no space, line break or accented letter")
    return key


_PORTS = re.compile(r"tcp://(?:\[[^\]\s]+\]|[^\s/:\[\]]+):([0-9]{1,5})")


def _zmq_endpoint(endpoint: str) -> str:
    port = _PORTS.fullmatch(endpoint)
    if not re.fullmatch(r"ipc://.+", endpoint) and not (port and 0 < int(port[1]) <= 65535):
        raise ValueError("write tcp://HOST:PORT or ipc://PATH")
    return endpoint


ZmqEndpoint = Annotated[str, AfterValidator(_zmq_endpoint)]


class Listen(Section):
    """Where clients reach the gateway. Beyond loopback it asks for API keys."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    tls_cert: Path | None = Field(default=None, description="PEM certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM private key")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: set both or neither")
        if self.tls_cert is not None:
            try:  # the empty password keeps OpenSSL from asking for one at the terminal
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, "")
            except OSError as error:
                raise ValueError(
                    f"tls_cert {self.tls_cert} with tls_key {self.tls_key}: {error}; "
                    "give a PEM chain and its private key, not encrypted"
                ) from error
        return self

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class ReplicaSettings(Section):
    """One engine server."""

    url: AnyHttpUrl
    name: str = Field(default="", pattern=r"^[A-Za-z0-9._:-]*$", description="default: host:port of the URL")
    engine: Literal["vllm"] = "vllm"
    api_key: SecretStr | None = Field(default=None, description="sent to the replica as a bearer token")
    api_key_file: Path | None = None
    ca_file: Path | None = Field(default=None, description="PEM bundle that signs the replica's certificate")
    events: ZmqEndpoint | None = Field(default=None, description="ZeroMQ endpoint of the replica's KV events")
    replay: ZmqEndpoint | None = Field(default=None, description="ZeroMQ endpoint that replays KV events")
    bind_events: bool = Field(
        default=False, description="listen at `events`, for engines that connect rather than bind"
    )
    ranks: PositiveInt = Field(default=1, description="data-parallel ranks of the server")

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, str):  # HPKV_REPLICAS='["http://a:1", …]' and --replica URL
            data = {"url": data}
        if isinstance(data, dict) and not data.get("name") and isinstance(data.get("url"), str):
            data = {**data, "name": re.sub(r"^\w+://(.*@)?|/.*$", "", data["url"])}
        return data

    @field_validator("url")
    @classmethod
    def _address_only(cls, url: AnyHttpUrl) -> AnyHttpUrl:
        # It is shown in logs, in /readyz and by check-config.
        if url.username or url.password:
            raise ValueError("credentials don't belong in the URL: send a key with `api_key`")
        if url.query or url.fragment:
            raise ValueError("write SCHEME://HOST:PORT/PATH, without ? and #; a key is sent with `api_key`")
        return url

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
    def _reachable(self) -> Self:
        if self.replay is not None and self.events is None:
            raise ValueError("replay without events: set both, or none")
        for field, endpoint, ours in (
            ("events", self.events, self.bind_events),
            ("replay", self.replay, False),
        ):
            if endpoint is not None:
                self._check_endpoint(field, endpoint, ours)
        return self

    def _check_endpoint(self, field: str, endpoint: str, ours: bool) -> None:
        if endpoint.startswith("tcp://*:") and not ours:
            hint = " (or set bind_events, for engines that connect to us)" if field == "events" else ""
            raise ValueError(f"{field}: nobody can connect to *: write the engine's own host{hint}")
        port = _PORTS.fullmatch(endpoint)
        if self.ranks > 1 and (port is None or int(port[1]) + self.ranks - 1 > 65535):
            raise ValueError(f"ranks > 1: {field} must be tcp://HOST:PORT; rank r is at PORT + r")

    def credential(self) -> str | None:
        """The key to send to the replica.

        Raises:
            ValueError: the file can't be read, or the key can't be sent.
        """
        if self.api_key_file is not None:
            try:
                return _sendable(_read_text(self.api_key_file).strip())
            except ValueError as error:
                raise ValueError(f"api_key_file: {error}") from None
        return _sendable(self.api_key.get_secret_value()) if self.api_key is not None else None

    def rank_names(self) -> list[str]:
        """What each rank is called."""
        return [f"{self.name}.{rank}" for rank in range(self.ranks)] if self.ranks > 1 else [self.name]


class RoutingSettings(Section):
    """Which replica gets a request."""

    policy: Literal["ttft", "deepest_hit", "least_loaded", "round_robin", "sticky"] = "ttft"


class PrefixSettings(Section):
    """What is known of prompts, for the policies that ask."""

    index_blocks: int = Field(
        default=1 << 20, ge=4096, description="distinct blocks remembered a model, some 200 bytes each"
    )
    compared: float = Field(
        default=0.01, ge=0, le=1, description="fraction of requests whose ids are compared with the engine's"
    )
    silent_s: PositiveFloat = Field(
        default=30.0, description="without events after traffic that must cause some, a replica is named"
    )
    encode_threads: int = Field(default=0, ge=0, description="threads for long texts; 0: half the cores")
    max_wait_s: PositiveFloat = Field(
        default=0.5, description="a text that would wait longer to be encoded is refused with 503"
    )


class ModelSettings(Section):
    """What the gateway has to know of a model to tokenize as its engine does: the engine's own flags."""

    tokenizer: str | None = Field(
        default=None, description="folder or hub name, where the one that the engine names can't be read here"
    )
    chat_template: Path | None = None
    content_format: Literal["auto", "string", "openai"] = "auto"
    chat_template_kwargs: dict[str, Any] = {}
    exclude_tools_when_tool_choice_none: bool = False

    @field_validator("chat_template")
    @classmethod
    def _readable(cls, file: Path | None) -> Path | None:
        if file is not None:
            _read_text(file)
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


class LimitSettings(Section):
    """What one request may ask."""

    body_bytes: PositiveInt = 64 << 20


def hash_key(key: bytes) -> str:
    """A key as it is stored and looked up: "sha256:" and the hex digest."""
    return "sha256:" + hashlib.sha256(key).hexdigest()


def _hashes(value: Any) -> Any:
    """Keys as their hashes: the plain text of a key is not kept, not even in memory."""
    keys = value.split(",") if isinstance(value, str) else value
    if not isinstance(keys, list | tuple | set | frozenset) or not all(isinstance(key, str) for key in keys):
        raise ValueError("write a list of strings; a key of digits alone needs quotes")
    return frozenset(_hash(key) for key in map(str.strip, keys) if key)


def _hash(key: str) -> str:
    if not key.lower().startswith("sha256:"):
        return hash_key(_sendable(key).encode())
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", key.lower()):
        raise ValueError("sha256: takes the 64 hex digits of a key's SHA-256 behind it")
    return key.lower()


Keys = Annotated[frozenset[str], NoDecode, BeforeValidator(_hashes)]


class AccessSettings(Section):
    """Who may ask. Files hold one key a line, plain or as sha256:HEX; `#` begins a comment."""

    api_keys: Keys = Field(default=frozenset(), repr=False)
    api_keys_file: Path | None = None
    admin_keys: Keys = Field(
        default=frozenset(), repr=False, description="may also route, register and drain"
    )
    admin_keys_file: Path | None = None

    @model_validator(mode="after")
    def _read(self) -> Self:
        for field, file in (("api_keys", self.api_keys_file), ("admin_keys", self.admin_keys_file)):
            if file is None:
                continue
            try:
                keys = _hashes([line.split("#")[0] for line in _read_text(file).splitlines()])
            except ValueError as error:
                raise ValueError(f"{field}_file: {error}") from None
            if not keys:
                raise ValueError(f"{field}_file: {file} holds no key")
            object.__setattr__(self, field, getattr(self, field) | keys)
        return self


class ShutdownSettings(Section):
    """What SIGTERM does: `/readyz` turns 503 at once, new requests are taken for `notice_s` more,
    then open answers may finish within `grace_s`."""

    notice_s: float = Field(default=0.0, ge=0)
    grace_s: float = Field(default=120.0, ge=0)


class LogSettings(Section):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"
    requests: bool = Field(default=True, description="one line a request")


class Settings(BaseSettings):
    """All of the gateway's settings."""

    model_config = SettingsConfigDict(
        env_prefix="HPKV_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        nested_model_default_partial_update=True,
    )

    listen: Listen = Listen()
    replicas: list[ReplicaSettings] = []
    routing: RoutingSettings = RoutingSettings()
    prefix: PrefixSettings = PrefixSettings()
    models: dict[str, ModelSettings] = {}
    timeouts: TimeoutSettings = TimeoutSettings()
    probes: ProbeSettings = ProbeSettings()
    limits: LimitSettings = LimitSettings()
    access: AccessSettings = AccessSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [name for replica in self.replicas for name in replica.rank_names()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"replicas: the name {twice[0]} is given twice")
        if not self.listen.loopback and not self.access.api_keys:
            raise ValueError(
                f"listen.host {self.listen.host} is reachable from other machines, and no API key is set: "
                "set access.api_keys_file (HPKV_ACCESS__API_KEYS_FILE), or listen on 127.0.0.1"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment; `load_settings` adds the file."""
        assert isinstance(init_settings, InitSettingsSource)
        values = dict(init_settings.init_kwargs)
        file = values.pop("_file", None)
        sources: list[PydanticBaseSettingsSource] = [InitSettingsSource(settings_cls, values), env_settings]
        if file is not None:
            sources.append(InitSettingsSource(settings_cls, file))
        return tuple(sources)


def load_settings(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read and check all settings.

    Args:
        file: YAML; None for none.
        flags: nested as the settings are, e.g. {"listen": {"port": 8000}}.
        environ: looked through for names that no setting has; values are read from the process's own.

    Raises:
        SettingsError
    """
    if file is not None and not file.is_file():
        raise SettingsError(f"{file} is not a file; write one, or leave --config out to use the defaults")
    _check_environment(environ)
    try:
        return Settings(**{**(flags or {}), "_file": _read_file(file) if file is not None else None})
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(dict(e)) for e in error.errors())) from error
    except SourceError as error:
        raise SettingsError(f"environment: {error}; lists and sections are written as JSON") from error


class _Loader(yaml.SafeLoader):
    """Safe YAML, in which a key is a string and stands once: the last of two would win unseen."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(problem="a key must be a string", problem_mark=key.start_mark)
            if key.value in seen:
                problem = f"{key.value} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:  # from a stream, YAML's errors don't quote the file, which has keys
            values = yaml.load(stream, _Loader)
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: write sections with settings, such as `listen: {{port: 8000}}`")
    return values


_ENGINES = "cache"
"""The section of variables that engines read, from the same environment perhaps."""


def _check_environment(environ: Mapping[str, str]) -> None:
    # pydantic-settings drops what it doesn't know; a misspelt variable would silently keep the default.
    variables = _variables()
    for name in environ:
        key = name.removeprefix("HPKV_").lower()
        section, nested, _ = key.partition("__")
        if not name.startswith("HPKV_") or section in Settings.model_fields or section == _ENGINES:
            continue
        if nested:
            raise SettingsError(f"{name}: no such section{_nearest(section, Settings.model_fields)}")
        # Other commands have variables of their own, so only what comes close to one of ours is a mistake.
        close = difflib.get_close_matches(key, variables, n=1, cutoff=0.85)
        if close:
            raise SettingsError(f"{name}: no such setting; did you mean HPKV_{close[0].upper()}?")


def _variables() -> list[str]:
    names = list(Settings.model_fields)
    for section, field in Settings.model_fields.items():
        keys: Iterable[str] = getattr(field.annotation, "model_fields", ())
        names += [f"{section}__{key}" for key in keys]
    return names


def _explain(error: dict[str, Any]) -> str:
    path = [str(part) for part in error["loc"]]
    where = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"{where}: no such setting{_nearest(path[-1], _keys_beside(path))}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _keys_beside(path: list[str]) -> Iterable[str]:
    kind: Any = Settings
    for part in path[:-1]:
        fields = getattr(kind, "model_fields", None)
        kind = fields[part].annotation if fields is not None else get_args(kind)[-1]  # list[X], dict[str, X]
    return list(kind.model_fields)


def _nearest(key: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"; did you mean {close[0]}? (known: {', '.join(known)})" if close else ""
