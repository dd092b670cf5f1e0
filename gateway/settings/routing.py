"""Which replica gets a request, and what is known of prompts for that."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, field_validator

from gateway.settings.base import Section, read_text


class RoutingSettings(Section):
    """Which replica gets a request."""

    policy: Literal["ttft", "deepest_hit", "least_loaded", "round_robin", "sticky"] = "ttft"
    prefetch: bool = Field(
        default=True, description="have the chosen replica load from ssd and shared before the request comes"
    )


class PrefixSettings(Section):
    """What is known of prompts, for the policies that ask."""

    index_blocks: int = Field(
        default=1 << 20, ge=4096, description="distinct blocks remembered a model, some 200 bytes each"
    )
    compared: float = Field(
        default=0.01, ge=0, le=1, description="fraction of requests whose ids are compared with the engine's"
    )
    silent_s: PositiveFloat = Field(
        default=30.0, description="without events after traffic that must cause some, a replica is named"
    )
    encode_threads: int = Field(default=0, ge=0, description="threads for long texts; 0: half the cores")
    max_wait_s: PositiveFloat = Field(
        default=0.5, description="a text that would wait longer to be encoded is refused with 503"
    )


class ModelSettings(Section):
    """What the gateway has to know of a model to tokenize as its engine does: the engine's own flags."""

    tokenizer: str | None = Field(
        default=None, description="folder or hub name, where the one that the engine names can't be read here"
    )
    chat_template: Path | None = None
    content_format: Literal["auto", "string", "openai"] = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default={})
    exclude_tools_when_tool_choice_none: bool = False

    @field_validator("chat_template")
    @classmethod
    def _readable(cls, file: Path | None) -> Path | None:
        if file is not None:
            read_text(file)
        return file
