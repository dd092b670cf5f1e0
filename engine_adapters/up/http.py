"""The few questions that a starting fleet asks over HTTP, with the standard library alone."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from .errors import EngineUnreachable

TIMEOUT = 5.0
# A proxy meant for the world outside would only get in the way of loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with success."""
    try:
        with _opener.open(url, timeout=TIMEOUT):
            return True
    except OSError:
        return False


def served_model(url: str) -> str:
    """Return the name of the first model of the engine at `url`. Raises EngineUnreachable."""
    try:
        with _opener.open(f"{url.rstrip('/')}/v1/models", timeout=TIMEOUT) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise EngineUnreachable(
            f"{url} doesn't list its models as an OpenAI-compatible engine does ({error}); "
            "start it, or correct --engines"
        ) from error


def kind(url: str) -> str:
    """Which kind of engine answers at `url`: only SGLang has this path."""
    return "sglang" if answers(f"{url.rstrip('/')}/model_info") else "vllm"


class Prefixes(msgspec.Struct, frozen=True):
    """How far the gateway knows one model's prompts, as its `/readyz` tells it."""

    name: str
    prefixes: str
    settled: bool


class _Readiness(msgspec.Struct, frozen=True):
    models: tuple[Prefixes, ...]


def known_prefixes(url: str) -> Sequence[Prefixes]:
    """Ask the gateway's `/readyz`; nothing while it isn't ready."""
    try:
        with _opener.open(url, timeout=TIMEOUT) as response:
            return msgspec.json.decode(response.read(), type=_Readiness).models
    except OSError:
        return ()


def is_settled(url: str) -> bool:
    """Whether the gateway is ready and has found out how far it knows prompts."""
    models = known_prefixes(url)
    return bool(models) and all(model.settled for model in models)


class EventSource(msgspec.Struct, frozen=True):
    """Where a vLLM publishes KV events, as its `/kv_event_sources` tells it."""

    enable_kv_cache_events: bool
    publisher: str
    endpoint: str
    replay_endpoint: str | None


class Endpoints(NamedTuple):
    """Where the gateway finds a replica's KV events; empty where there are none for it."""

    events: str = ""
    replay: str = ""


class PublishedPorts(msgspec.Struct, frozen=True):
    """Where an SGLang publishes KV events over TCP, as its `/server_info` tells it: rank 0's ports."""

    endpoint_host: str
    endpoint_port_base: int
    dp_size: int = 1
    replay_endpoint_port_base: int | None = None


class _ServerInfo(msgspec.Struct, frozen=True):
    kv_events: PublishedPorts | None = None


def event_endpoints(url: str) -> Endpoints:
    """Ask the engine at `url` for its event endpoints, as seen from here; none if it doesn't say.

    Of several ranks none are named: how many there are is a setting, which can't be known.
    """
    url = url.rstrip("/")
    host = urllib.parse.urlsplit(url).netloc.rpartition("@")[2]
    host = re.sub(r":\d+$", "", host)
    try:
        return _of_vllm(url, host) or _of_sglang(url, host)
    except (OSError, msgspec.MsgspecError):
        return Endpoints()


def _of_vllm(url: str, host: str) -> Endpoints | None:
    """None where it isn't asked."""
    try:
        sources = msgspec.json.decode(_read(f"{url}/kv_event_sources"), type=dict[int, EventSource])
    except urllib.error.HTTPError:
        return None
    if len(sources) != 1 or not (source := sources[min(sources)]).enable_kv_cache_events:
        return Endpoints()
    events, replay = _seen(source.endpoint, host), _seen(source.replay_endpoint or "", host)
    return Endpoints(events, replay) if events else Endpoints()


def _of_sglang(url: str, host: str) -> Endpoints:
    ports = msgspec.json.decode(_read(f"{url}/server_info"), type=_ServerInfo).kv_events
    if ports is None or ports.dp_size != 1 or ports.endpoint_host not in ("*", "0.0.0.0", "[::]"):
        return Endpoints()
    replay = ports.replay_endpoint_port_base
    return Endpoints(f"tcp://{host}:{ports.endpoint_port_base}", f"tcp://{host}:{replay}" if replay else "")


def _read(url: str) -> bytes:
    with _opener.open(url, timeout=TIMEOUT) as response:
        answer: bytes = response.read()
    return answer


def _seen(endpoint: str, host: str) -> str:
    """An endpoint that an engine binds, as one to connect to; empty if that can't be."""
    if endpoint.startswith("ipc://"):
        return endpoint if Path(endpoint.removeprefix("ipc://")).is_socket() else ""
    return endpoint.replace("*", host) if endpoint.startswith("tcp://*:") else ""
