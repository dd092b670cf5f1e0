"""The gateway's configuration, as `hpkv serve --config` reads it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Upstream:
    """A replica as the gateway is told of it; empty endpoints are not known."""

    name: str
    url: str
    events: str = ""
    replay: str = ""
    engine: str = "vllm"
    agent: str = ""


def write_config(file: Path, port: int, upstreams: Sequence[Upstream]) -> None:
    """Write the configuration of a gateway on `port` of the loopback address."""
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "replicas": [_entry(upstream) for upstream in upstreams],
    }
    file.write_text(yaml.safe_dump(config, sort_keys=False))


def _entry(upstream: Upstream) -> dict[str, Any]:
    entry = {"name": upstream.name, "url": upstream.url, "engine": upstream.engine}
    endpoints = {"events": upstream.events, "replay": upstream.replay, "agent": upstream.agent}
    return entry | {key: endpoint for key, endpoint in endpoints.items() if endpoint}


def command(config: Path) -> list[str]:
    """Return the command line; `hpkv` is the one of this very environment."""
    return [str(Path(sys.executable).with_name("hpkv")), "serve", "--config", str(config)]
