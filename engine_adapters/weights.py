"""What a model or an adapter is called in a namespace, wherever the engine has it from."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cache.errors import SettingsError
from cache.weights import fingerprint

_NAMES = ("_name_or_path", "transformers_version")
"""Of a model's configuration, what says nothing about its KV."""


def named(folder: Path, settings: Mapping[str, Any], memory: Path) -> str:
    """A name by content: of the weights in a folder, and of the settings beside them.

    Raises SettingsError (of `cache`) or OSError if they can't be read.
    """
    return f"{fingerprint(folder, memory)}:{_digest(settings)}"


def folder_of(name: str, revision: str | None = None) -> Path:
    """The folder of a model or adapter, in the hub's cache if it is a hub's name. Raises SettingsError."""
    path = Path(name)
    if path.is_file():
        raise SettingsError(f"{path} is a single file: its folder would be read, move it to one of its own")
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError) as error:
        raise SettingsError(f"{name} is neither a folder nor in the hub's cache") from error


def _digest(settings: Mapping[str, Any]) -> str:
    known = {key: value for key, value in settings.items() if key not in _NAMES}
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]
