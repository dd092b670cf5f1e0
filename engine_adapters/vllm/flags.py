"""The part of vLLM's command line that is ours, and the flags that it can't be mixed with."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_adapters.errors import SettingsError

CONNECTOR = {
    "kv_connector": "HpkvConnector",
    "kv_connector_module_path": "engine_adapters.vllm.inside.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
SPEC = {
    "spec_name": "HpkvSpec",
    "spec_module_path": "engine_adapters.vllm.inside.spec",
    "offload_prompt_only": False,  # an answer is part of the next turn's prompt
}

_CLASHES = {
    "--kv-events-config": "use --events and --replay",
    "--kv-transfer-config": "use --tiers",
    "--kv-offloading-size": "use --tiers host=SIZE",
    "--kv-offloading-backend": "use --tiers",
    "--no-enable-prefix-caching": "without a prefix cache there is nothing to keep",
    "--no-enable-prompt-tokens-details": "the gateway compares them with what it predicted",
    "--model": "the model is the argument before --",
}


@dataclass(frozen=True)
class Endpoints:
    """Where vLLM binds its KV events and their replay: `ipc://PATH`, or `tcp://*:PORT`; rank r at PORT + r.

    vLLM connects to any other address instead of binding it, and a gateway that connects too hears nothing.
    """

    events: str
    replay: str

    def __post_init__(self) -> None:
        for endpoint in (self.events, self.replay):
            if not re.fullmatch(r"ipc://.+|tcp://\*:\d{1,5}", endpoint):
                raise SettingsError(
                    f"vLLM can't bind {endpoint}: write ipc://PATH for a gateway on this machine "
                    "or tcp://*:PORT (events carry prompts in clear: keep that behind a firewall)"
                )
        if self.events == self.replay:
            raise SettingsError(f"events and replay can't both be at {self.events}: give replay another")


def watched(endpoints: Endpoints) -> list[str]:
    """Return the flags by which the gateway knows what a replica holds."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoints.events,
        "replay_endpoint": endpoints.replay,
        "topic": "kv",
    }
    return [
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",  # cached_tokens in usage
        "--enable-scale-out",  # /render, by which the gateway knows the prompts of responses and messages
        f"--kv-events-config={json.dumps(events)}",
    ]


def tiered(configuration: Mapping[str, Any]) -> list[str]:
    """Return the flags that put our tiers into the engine; `configuration` is as `load_settings` takes it."""
    transfer = {**CONNECTOR, "kv_connector_extra_config": {**SPEC, **configuration}}
    return [f"--kv-transfer-config={json.dumps(transfer)}"]


def refuse_clashes(flags: Sequence[str]) -> None:
    """Raise SettingsError if one of `flags`, also abbreviated or in dotted form, would undo one of ours."""
    for flag in flags:
        name = re.split(r"[=.]", flag, maxsplit=1)[0].replace("_", "-")
        for clash, remedy in _CLASHES.items():
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
