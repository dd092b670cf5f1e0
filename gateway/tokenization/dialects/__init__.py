"""One dialect an engine, by the engine's name."""

from collections.abc import Mapping

from gateway.tokenization.dialects.base import Dialect
from gateway.tokenization.dialects.sglang import SglangDialect
from gateway.tokenization.dialects.vllm import VllmDialect

DIALECTS: Mapping[str, type[Dialect]] = {"vllm": VllmDialect, "sglang": SglangDialect}
