"""The part of SGLang's command line that is ours, and the flags that it can't be mixed with."""

import json

from engine_adapters.flags import Endpoints

CLASHES = {
    "--kv-events-config": "use --events and --replay",
    "--disable-radix-cache": "without a prefix cache there is nothing to keep",
    "--model-path": "the model is the argument before --",
}

PAGE_TOKENS = 16


def watched(endpoints: Endpoints) -> list[str]:
    """Return the flags by which the gateway knows what a replica holds. The user's own come after them."""
    events = {
        "publisher": "zmq",
        "endpoint": endpoints.events,
        "replay_endpoint": endpoints.replay,
        "topic": "kv",
        "format": "dynamo",  # by default a prompt with an extra key has the hashes of one without
    }
    return [
        "--enable-cache-report",  # cached_tokens in usage
        "--enable-metrics",
        f"--page-size={PAGE_TOKENS}",  # SGLang's default is 1: an event's bytes for each token
        f"--kv-events-config={json.dumps(events)}",
    ]
