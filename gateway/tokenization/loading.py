"""Reading a model's tokenizer from its folder or from the hub."""

import ctypes
import json
import logging
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateSyntaxError

from gateway.tokenization.dialects.base import ModelFacts, TemplateOptions
from gateway.tokenization.errors import TokenizerUnavailable
from gateway.tokenization.template import Templates

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_ONE_AT_A_TIME = threading.Lock()
"""The library imports its parts when they are first used, and fails if two threads do at once."""

_MOST_OF_A_MESSAGE = 160
"""Characters of a library's error that operators are shown."""

_MISTRAL_FILES = ("tekken.json", "consolidated.safetensors")


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer without truncation and padding, and what else a prompt depends on."""

    backend: "Tokenizer"
    special_tokens: tuple[str, ...]
    facts: ModelFacts
    vocabulary: int = 0
    """How many token ids the model knows; 0 where its configuration doesn't say."""


def load(source: str, options: TemplateOptions) -> LoadedTokenizer:
    """Load from a folder or by hub name. Reads files, maybe the network, and takes a second or more.

    Raises:
        TokenizerUnavailable: it can't be loaded, needs code of its own, or has no Rust implementation.
    """
    with _ONE_AT_A_TIME:
        return _load(source, options)


def _load(source: str, options: TemplateOptions) -> LoadedTokenizer:
    tokenizer = _tokenizer(source)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(tokenizer.split_special_tokens)
    config = _json(source, "config.json")
    try:
        templates = _templates(tokenizer, options, _json(source, "chat_template.json"))
    except TemplateSyntaxError as error:
        raise TokenizerUnavailable(
            source, f"its chat template isn't valid Jinja ({error.message})", "Correct the template"
        ) from error
    facts = ModelFacts(
        templates,
        tuple(config.get("architectures") or ()),
        str(config.get("model_type", "")),
        all(_file(source, name) for name in _MISTRAL_FILES),
    )
    return LoadedTokenizer(backend, tuple(tokenizer.all_special_tokens), facts, _vocabulary(config))


def _vocabulary(config: dict[str, Any]) -> int:
    """A model of several kinds of input keeps its text's size one level deeper."""
    text = config.get("text_config")
    size = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return size if isinstance(size, int) else 0


def give_back_memory() -> None:
    """Return what loading left behind to the system: some 30 MB in pieces, on a thread that ends now.

    glibc would keep it for that thread's next allocations, which never come. Other C libraries do without.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _tokenizer(source: str) -> "PreTrainedTokenizerFast":
    # Both are read by libraries at import or first use, process-wide. We encode on threads of our own; the
    # library's would be more than the machine has cores for, and don't survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    for library in ("transformers", "huggingface_hub"):  # each writes lines of its own, beside our log's
        logging.getLogger(library).handlers.clear()
        logging.getLogger(library).propagate = True
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError) as error:
        remedy = (
            "Set models.NAME.tokenizer to a folder with its files, or to a hub model that can be read here"
        )
        raise TokenizerUnavailable(source, _why(source, error), remedy) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        remedy = "Requests for this model will be routed without knowledge of prefixes"
        raise TokenizerUnavailable(source, f"{type(tokenizer).__name__} has no Rust implementation", remedy)
    return tokenizer


def _why(source: str, error: Exception) -> str:
    """In few words. The library takes a path that isn't there for a hub model of a strange name."""
    if source.startswith((".", "/", "~")) and not Path(source).is_dir():
        return "there is no such folder on this machine"
    first = re.split(r"\.\s|\n", str(error).strip(), maxsplit=1)[0] or "no message"
    return f"{type(error).__name__}: {first[:_MOST_OF_A_MESSAGE].rstrip('.')}"


def _templates(
    tokenizer: "PreTrainedTokenizerFast", options: TemplateOptions, legacy: dict[str, Any]
) -> Templates:
    """The given template, else the model's own; a processor's legacy file goes first without tools."""
    special = {
        name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
    }
    if options.chat_template is None:
        return Templates.of(tokenizer.chat_template, special, without_tools=legacy.get("chat_template"))
    return Templates.of(options.chat_template, special)


def _json(source: str, name: str) -> dict[str, Any]:
    path = _file(source, name)
    content = json.loads(path.read_text(encoding="utf-8")) if path else {}
    return content if isinstance(content, dict) else {}


def _file(source: str, name: str) -> Path | None:
    from transformers.utils.hub import cached_file

    found = cached_file(
        source,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return Path(found) if found else None
