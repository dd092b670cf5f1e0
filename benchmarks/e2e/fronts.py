"""What stands before a pair of replicas: our gateway, or the router that belongs to their engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.main.rig import await_prefixes, serve
from benchmarks.peers import peer
from benchmarks.servers import Server, free_port
from engine_adapters.replica import LocalReplica

ROUTERS = {"vllm": ("vllm-router",), "sglang": ("smg", "launch")}

Replicas = Sequence[LocalReplica]


@contextmanager
def gateway(engine: str, replicas: Replicas, **sections: Any) -> Iterator[Server]:
    """`hpkv serve` with these sections of settings, told of events and agents; it knows prompts."""
    upstreams = [
        {
            "name": one.name,
            "url": one.url,
            "engine": engine,
            "events": one.events,
            "replay": one.replay,
            **({"agent": one.agent} if one.agent else {}),
        }
        for one in replicas
    ]
    with serve("e2e", upstreams, None, **sections) as server:
        await_prefixes(server)
        yield server


@contextmanager
def router(policy: str, engine: str, replicas: Replicas) -> Iterator[Server]:
    """The engine's own router with this policy. Raises PeerMissing."""
    (name, *calls), port = ROUTERS[engine], free_port()
    command = [str(peer(name) / name), *calls, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *(one.url for one in replicas), "--worker-startup-check-interval", "1"]
    command += ["--policy", policy, "--prometheus-port", str(free_port()), "--log-level", "error"]
    with Server(f"{name}-{policy}", command, port, ready="/readiness") as server:
        yield server
