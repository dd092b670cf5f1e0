"""The part of vLLM's command line that is ours, and the flags that it can't be mixed with."""

import json
from collections.abc import Mapping
from typing import Any

from engine_adapters.flags import Endpoints

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

CLASHES = {
    "--kv-events-config": "use --events and --replay",
    "--kv-transfer-config": "use --tiers",
    "--kv-offloading-size": "use --tiers host=SIZE",
    "--kv-offloading-backend": "use --tiers",
    "--no-enable-prefix-caching": "without a prefix cache there is nothing to keep",
    "--no-enable-prompt-tokens-details": "the gateway compares them with what it predicted",
    "--model": "the model is the argument before --",
}

LASTING_CLASHES = {
    "--weight-transfer-config": "pages on ssd or shared would outlive the weights that they are named after; "
    "use host alone",
}
"""Beside those, with `ssd` or `shared`."""


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
