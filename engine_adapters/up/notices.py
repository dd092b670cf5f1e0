"""What `hpkv up` says of a fleet that is up: what is on, and what falls short of what could be."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from engine_adapters.settings import Tiers
from engine_adapters.tiers import format_tiers

from .gateway import Upstream
from .http import Prefixes

AGREES = "agrees"
"""The gateway's word for prompts that it knows exactly."""


def tiers(each: Tiers) -> str:
    """Say which tiers each replica has, and how to have others."""
    return (
        f"Tiers of each replica: {each.mode} ({format_tiers(each)}). --tiers (TIERS=) sets others, or `gpu`."
    )


def events(upstreams: Iterable[Upstream], config: Path) -> Iterator[str]:
    """Say of which replicas the gateway can only guess what they hold; `config` is the gateway's file."""
    for upstream in upstreams:
        if not upstream.events:
            yield (
                f"Replica {upstream.name} names no KV events that can be followed from here: what it holds "
                f"is guessed from what was sent to it. Start it by `hpkv launch {upstream.engine} --events … "
                f"--replay …`, or write events: and replay: into a copy of {config} for "
                "`hpkv serve --config`."
            )


def prompts(models: Iterable[Prefixes]) -> Iterator[str]:
    """Say for which models the gateway doesn't know prompts as the engine does, and why."""
    for model in models:
        if model.prefixes != AGREES:
            yield f"Prompts of {model.name}: {model.prefixes} (`agrees` is well; see docs/tokenization.md)"
