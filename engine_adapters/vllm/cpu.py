"""How a vLLM replica on CPU is started: its flags and its environment, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_adapters.flags import Endpoints
from engine_adapters.replica import LocalReplica

from . import launch
from .launch import Launch


@dataclass(frozen=True)
class CpuReplica(LocalReplica):
    """One vLLM replica to be. `kv_space_gib` is the memory for KV blocks."""

    block_tokens: int = 32
    kv_space_gib: int = 1

    def launch(self) -> Launch:
        """The same as `hpkv launch vllm` is told it."""
        flags = (
            f"--served-model-name={self.served_name}",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--dtype=bfloat16",
            "--max-model-len=auto",  # as much of the model's context as the KV space holds
            f"--block-size={self.block_tokens}",  # on CPU a multiple of 32
            "--enforce-eager",  # compiling would take a minute at the first start
            "--enable-auto-tool-choice",
            "--tool-call-parser=hermes",
            *self.extra,
        )
        endpoints = Endpoints(self.events, self.replay)
        return Launch(self.model, self.tiers, endpoints, flags, socket=self.agent)


def command(replica: CpuReplica, executable: Path, base: Mapping[str, str]) -> list[str]:
    """Return the command line; `executable` is the environment's `vllm`. Raises SettingsError."""
    return launch.command(replica.launch(), executable, environment(replica, base))


def environment(replica: CpuReplica, base: Mapping[str, str]) -> dict[str, str]:
    """Return the process environment, on top of `base`."""
    ours = {
        "VLLM_CPU_KVCACHE_SPACE": str(replica.kv_space_gib),
        "VLLM_NO_USAGE_STATS": "1",
        "TMPDIR": str(replica.sockets),  # vLLM leaves sockets and files behind
    }
    if replica.cores:
        ours["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, replica.cores))
    if replica.local:
        ours["HF_HUB_OFFLINE"] = "1"
    return {**base, **ours}
