"""How a vLLM replica on CPU is started: its command line and its environment, as plain values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Launch:
    """One replica to be.

    `sockets` is a folder of this fleet's own for vLLM's unix sockets; its path must be short, for theirs end
    at 107 bytes. `cores` are the CPU cores it computes on; empty leaves the choice to vLLM. `kv_space_gib` is
    the memory for KV blocks. `extra` ends the command line, so that it wins.
    """

    name: str
    model: str
    served_name: str
    port: int
    sockets: Path
    cores: tuple[int, ...] = ()
    block_tokens: int = 32
    kv_space_gib: int = 1
    extra: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Where it answers HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def events(self) -> str:
        """Endpoint of its KV events. vLLM binds `ipc://` and addresses with a `*`, and connects to others."""
        return f"ipc://{self.sockets}/{self.name}.events"

    @property
    def replay(self) -> str:
        """Endpoint that sends missed KV events again."""
        return f"ipc://{self.sockets}/{self.name}.replay"

    @property
    def local(self) -> bool:
        """Whether the model is a folder, not a hub's name."""
        return Path(self.model).is_dir()


def command(launch: Launch, executable: Path) -> list[str]:
    """Return the command line; `executable` is the environment's `vllm`."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": launch.events,
        "replay_endpoint": launch.replay,
        "topic": "kv",
    }
    return [
        str(executable),
        "serve",
        launch.model,
        f"--served-model-name={launch.served_name}",
        "--host=127.0.0.1",
        f"--port={launch.port}",
        "--dtype=bfloat16",
        "--max-model-len=auto",  # as much of the model's context as the KV space holds
        f"--block-size={launch.block_tokens}",  # on CPU a multiple of 32
        "--enforce-eager",  # compiling would take a minute at the first start
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",  # cached_tokens in usage
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
        f"--kv-events-config={json.dumps(events)}",
        *launch.extra,
    ]


def environment(launch: Launch, base: Mapping[str, str]) -> dict[str, str]:
    """Return the process environment, on top of `base`."""
    ours = {
        "VLLM_CPU_KVCACHE_SPACE": str(launch.kv_space_gib),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": str(launch.sockets),  # vLLM leaves its own sockets behind
    }
    if launch.cores:
        ours["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, launch.cores))
    if launch.local:
        ours["HF_HUB_OFFLINE"] = "1"
    return {**base, **ours}
