"""Where our modules' log goes in vLLM's processes."""

import logging


def join() -> None:
    """To vLLM's own handlers, at its level, if it has set any up."""
    theirs = logging.getLogger("vllm")
    if not theirs.handlers:
        return
    for name in ("cache", "engine_adapters"):
        ours = logging.getLogger(name)
        ours.handlers, ours.propagate = theirs.handlers, False
        ours.setLevel(theirs.level)
