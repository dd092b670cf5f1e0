"""The plugin by which SGLang takes in what it lacks on a CPU (entry point group `sglang.srt.plugins`)."""

import torch

from engine_adapters.sglang.shims import attention, host, pinning


def register() -> None:
    """Called by SGLang in each of its processes, before it makes anything."""
    from sglang.srt.mem_cache.pool_host import common, mha
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(attention.TARGET, attention.extend, HookType.AROUND)
    pinning.install()
    torch.cpu.Event = host.Event
    if not hasattr(torch.cpu.Stream, "synchronize"):
        torch.cpu.Stream.synchronize = lambda self: None
    common.ALLOC_MEMORY_FUNCS["cpu"] = host.allocate
    for transfer in host.TRANSFERS:
        setattr(mha, transfer.__name__, transfer)
