"""The settings of an engine's inside, the same for all engines; environment > the engine's configuration.

Each setting has a variable: HPKV_CACHE__ and the way to it, such as HPKV_CACHE__SSD__PATH. Only the token
threshold has another one, which each engine's adapter names.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from cache import policies, state, stores
from cache.economics import Priors
from cache.errors import CacheError
from cache.sizes import format_size, parse_size
from cache.stores import address
from cache.stores.opening import KINDS
from cache.tiers.ssd.folder import Limits

from . import wire
from .errors import SettingsError
from .validation import Section, explain, nearest, section_of

PREFIX = "HPKV_CACHE__"
THRESHOLD = "token_threshold"
_LEAST = 1 << 20
_WRITE: Mapping[str, Callable[[], policies.WritePolicy]] = {
    "through": policies.Through,
    "back": policies.Back,
    "selective": policies.Selective,
}


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} depends on the engine's working folder: write it from / on")
    return path


def _readable(path: Path) -> Path:
    try:
        path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    return path


def _http_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none
        good = False
    if not good or not url.isascii() or re.search(r"[@?#\s]", url):
        raise ValueError("write http://HOST:PORT or https://HOST:PORT, without credentials")
    return url.rstrip("/")


HttpUrl = Annotated[str, AfterValidator(_http_url)]


def _large_enough(size: int) -> int:
    if size < _LEAST:
        raise ValueError(f"{format_size(size)} is too small: a tier has {format_size(_LEAST)} at the least")
    return size


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
KeyFile = Annotated[Path, AfterValidator(_readable)]
Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, when_used="json")]
TierSize = Annotated[Size, AfterValidator(_large_enough)]


class StoreSettings(Section):
    """What all tiers below `host` have."""

    admission: Literal["always", "second_touch"] = Field(
        default="always", description="take every page, or only one that was offered before"
    )

    def admits(self) -> policies.Admission:
        """The admission, made anew."""
        return policies.SecondTouch() if self.admission == "second_touch" else policies.Always()


class SsdSettings(StoreSettings):
    """A folder on a local file system."""

    path: AbsolutePath
    cap: TierSize = Field(description="bytes on the disk, all processes that use the folder together")
    free_floor: Size = Field(default=1 << 30, ge=0, description="bytes that stay free on the file system")

    def limits(self) -> Limits:
        """What the store is held to."""
        return Limits(cap=self.cap, free_floor=self.free_floor)


def _store_url(url: str) -> str:
    try:
        scheme, host, path, _ = address.parse(url)
    except CacheError as error:
        raise ValueError(str(error)) from error
    local = scheme in ("", "file")
    if scheme not in KINDS or not (path.startswith("/") if local else host):
        kinds = ", ".join(f"{kind}://" for kind in KINDS if kind)
        raise ValueError(f"write a folder from / on, or one of {kinds} with what follows it")
    return url


class SharedSettings(StoreSettings):
    """Storage that several replicas see."""

    url: Annotated[str, AfterValidator(_store_url)] = Field(
        description="a folder from / on, or the URL of a store"
    )
    cap: TierSize | None = Field(default=None, description="bytes, all engines together; none: no limit")
    max_age_s: PositiveFloat | None = Field(
        default=None, description="since a page was last used, as far as the store knows; none: no limit"
    )

    @property
    def package(self) -> str:
        """The package that opens this kind of store."""
        return KINDS[address.parse(self.url).scheme].package

    def limits(self) -> stores.Limits:
        """What the store is held to."""
        return stores.Limits(cap=self.cap or 0, age=self.max_age_s or 0.0)


class Tiers(Section):
    """Which tiers are on, and where. The engine's own `gpu` cache always is."""

    host: TierSize | None = Field(
        default=None,
        description="bytes of CPU memory, all ranks of an engine together; each data-parallel rank's",
    )
    ssd: SsdSettings | None = None
    shared: SharedSettings | None = None

    @property
    def mode(self) -> str:
        """The tiers that are on, such as "gpu+host+ssd"."""
        below = ("host", self.host), ("ssd", self.ssd), ("shared", self.shared)
        return "+".join(["gpu", *(name for name, tier in below if tier is not None)])

    @property
    def lasts(self) -> bool:
        """Whether pages outlive the engine that made them."""
        return self.ssd is not None or self.shared is not None

    def configuration(self) -> dict[str, Any]:
        """As `load_settings` takes it, sizes readable, defaults left out."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @model_validator(mode="after")
    def _stands_on_host(self) -> Self:
        for name, tier in (("ssd", self.ssd), ("shared", self.shared)):
            if tier is not None and self.host is None:
                raise ValueError(f"{name} loads through host memory: set host too, such as host=8GiB")
        return self


class PinSettings(Section):
    """How far pages may be kept on request."""

    host_share: float = Field(default=0.5, ge=0, le=1, description="of the host tier, all pins together")
    longest_s: PositiveFloat = Field(default=3600.0, description="the longest time that one pin lasts")


class AgentSettings(Section):
    """Where the engine's agent answers, and whom."""

    bind: str | None = Field(
        default=None, pattern=r"^(tcp://.+:\d{1,5}|ipc://.+)$", description="ZeroMQ endpoint; none: no agent"
    )
    key_file: KeyFile | None = Field(default=None, description="its own CURVE secret key")
    clients_file: KeyFile | None = Field(
        default=None, description="CURVE public keys that may ask, one a line"
    )

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if (self.key_file is None) != (self.clients_file is None):
            raise ValueError("key_file and clients_file go together: set both or neither")
        port = re.search(r"^tcp:.*:(\d+)$", self.bind or "")
        if port is not None and not 0 < int(port[1]) <= 65533:
            raise ValueError(f"bind {self.bind}: an agent takes this port and the next two, up to 65535")
        local = re.match(r"ipc://|tcp://(127\.\d+\.\d+\.\d+|localhost|\[::1\]):", self.bind or "ipc://")
        if not local and self.key_file is None:
            raise ValueError(
                f"bind {self.bind} is reachable from other machines: set key_file and clients_file, or bind "
                "tcp://127.0.0.1:PORT"
            )
        return self

    @model_validator(mode="after")
    def _bindable(self) -> Self:
        if self.bind is not None and not all(map(wire.bindable, wire.endpoints(self.bind))):
            raise ValueError(
                f"bind {self.bind} is too long: its sockets' paths, of which the last ends in .replay, have "
                f"{wire.LONGEST_PATH} bytes at the most"
            )
        return self


class GatewaySettings(Section):
    """The gateway at which the engine registers itself."""

    url: HttpUrl
    replica_url: HttpUrl = Field(description="how the gateway reaches the engine's HTTP server")
    admin_key_file: KeyFile | None = Field(default=None, description="holds one of the gateway's admin keys")
    ranks: PositiveInt = Field(default=1, description="data-parallel ranks behind that address")


class Settings(Tiers):
    """All that an engine's inside is told."""

    token_threshold: int = Field(default=1024, ge=0, description="tokens that a load must gain, at the least")
    write: Literal["through", "back", "selective"] = Field(
        default="through", description="below host: at once, before eviction, or at the second use"
    )
    look_s: PositiveFloat = Field(default=0.05, description="longest look-up in a remote store")
    load_s: PositiveFloat = Field(default=5.0, description="then a load is given up and recomputed")
    hit_s: PositiveFloat = Field(
        default=60.0, description="how long pages wait for a request that has gone silent"
    )
    pins: PinSettings = PinSettings()
    agent: AgentSettings = AgentSettings()
    gateway: GatewaySettings | None = None

    def hierarchy(
        self,
        page_tokens: int,
        page_bytes: int,
        threshold: int | None = None,
        priors: Priors | None = None,
    ) -> state.Settings:
        """The same for `cache.hierarchy`, once the engine has said how large its pages are.

        `threshold` stands in for `token_threshold` where the engine applies that itself; `priors`: what is
        believed of its speed before it has computed anything, a GPU's unless given.
        """
        return state.Settings(
            page_tokens=page_tokens,
            page_bytes=page_bytes,
            threshold=self.token_threshold if threshold is None else threshold,
            load_seconds=self.load_s,
            look_seconds=self.look_s,
            hit_seconds=self.hit_s,
            write=_WRITE[self.write](),
            priors=priors or Priors(),
        )


def load_settings(
    configuration: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    threshold_variable: str,
    engine_keys: Collection[str] = (),
) -> Settings:
    """Read and check all settings.

    Args:
        configuration: nested as `Settings` is, beside keys of the engine's own.
        environ: the process's; an empty variable counts as none.
        threshold_variable: the name of the token threshold's.
        engine_keys: keys in `configuration` that are not ours.

    Raises:
        SettingsError
    """
    ours = {key: value for key, value in configuration.items() if key not in engine_keys}
    variables = variables_of(environ, threshold_variable)
    for name, way in variables.items():
        ours = _with(ours, way, environ[name])
    try:
        return Settings.model_validate(ours)
    except ValidationError as error:
        raise SettingsError(
            explain(error, Settings, {way: name for name, way in variables.items()})
        ) from error


def variables_of(environ: Mapping[str, str], threshold_variable: str) -> dict[str, tuple[str, ...]]:
    """Each variable that is set, and the way to its setting.

    Raises SettingsError for one that isn't known.
    """
    known = {PREFIX + "__".join(way).upper(): way for way in _ways(Settings)}
    del known[PREFIX + THRESHOLD.upper()]
    known[threshold_variable] = (THRESHOLD,)
    family = threshold_variable.partition("HPKV_")[0] + "HPKV_"
    for name in environ:
        if name.startswith((PREFIX, family)) and name not in known:
            raise SettingsError(f"{name}: no such variable{nearest(name, known)}")
    return {name: way for name, way in known.items() if environ.get(name)}


def thresholds_of_others(environ: Mapping[str, str], threshold_variable: str) -> list[str]:
    """Other engines' threshold variables, where they alone are set: somebody may have meant this one.

    An environment for engines of several kinds has each kind's.
    """
    others = [
        name for name in environ if re.fullmatch(r"[A-Z]+_HPKV_TOKEN_THRESHOLD", name) and environ[name]
    ]
    return [] if threshold_variable in others else sorted(others)


def _ways(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name in model.model_fields:
        inner = section_of(model, name)
        yield from ((name, *way) for way in _ways(inner)) if inner else [(name,)]


def _with(values: Mapping[str, Any], way: tuple[str, ...], value: str) -> dict[str, Any]:
    """A copy of `values` with one more; what should be a section and isn't stays, to be refused."""
    name, *rest = way
    inner = values.get(name, {})
    if not rest:
        return {**values, name: value}
    return {**values, name: _with(inner, tuple(rest), value) if isinstance(inner, Mapping) else inner}
