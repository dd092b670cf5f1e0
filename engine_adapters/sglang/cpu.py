"""How an SGLang replica on CPU is started: its flags and its environment, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_adapters.flags import Endpoints
from engine_adapters.replica import LocalReplica

from . import launch
from .launch import Launch

COPIES = ("--hicache-io-backend=direct", "--hicache-mem-layout=page_first_direct")
"""Between device and host tier, those that `shims/host.py` has for a CPU."""

HOST_TIER = ("--enable-hierarchical-cache", "--hicache-size=1", *COPIES)
"""SGLang's own host tier of 1 GB, and no other."""


@dataclass(frozen=True)
class CpuReplica(LocalReplica):
    """One SGLang replica to be. `kv_tokens` fit into its KV cache."""

    kv_tokens: int = 32768

    @property
    def agent(self) -> str:
        """Endpoint of its agent, which comes with tiers below SGLang's own."""
        below = self.tiers.ssd is not None or self.tiers.shared is not None
        return super().agent if below else ""

    def launch(self) -> Launch:
        """The same as `hpkv launch sglang` is told it."""
        flags = (
            f"--served-model-name={self.served_name}",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--device=cpu",
            f"--max-total-tokens={self.kv_tokens}",
            "--sleep-on-idle",  # its scheduler would keep a core busy with waiting
            "--tool-call-parser=hermes",
            *(COPIES if self.tiers.host is not None else ()),
            *self.extra,
        )
        endpoints = Endpoints(self.events, self.replay)
        return Launch(self.model, self.tiers, endpoints, flags, socket=self.agent)


def command(replica: CpuReplica, executable: Path, base: Mapping[str, str]) -> list[str]:
    """Return the command line; `executable` is the environment's `sglang`. Raises SettingsError."""
    return launch.command(replica.launch(), executable, base)


def environment(replica: CpuReplica, base: Mapping[str, str]) -> dict[str, str]:
    """Return the process environment, on top of `base`."""
    ours = {"SGLANG_USE_CPU_ENGINE": "1", "TMPDIR": str(replica.sockets)}
    if replica.cores:
        ours["OMP_NUM_THREADS"] = str(len(replica.cores))
    if replica.local:
        ours["HF_HUB_OFFLINE"] = "1"
    return {**base, **ours}
