"""What a model's weights are called in a namespace: by their content, never by their path."""

import json
import re
import secrets
from pathlib import Path

import xxhash

from cache.errors import SettingsError
from cache.memory import allocate

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_CHUNK = 8 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")


def fingerprint(model: Path, memory: Path) -> str:
    """The commit of a hub snapshot, else a hash of every byte of every weight file in the folder.

    Hashes are remembered in the file `memory`, by path, size, modification time and inode, so that a start
    after the first reads no weights. Raises SettingsError for a folder without weights.
    """
    commit = snapshot_commit(model)
    if commit is not None:
        return commit
    files = sorted({path for pattern in WEIGHTS for path in model.glob(pattern)})
    if not files:
        raise SettingsError(f"{model} has no weight files ({', '.join(WEIGHTS)}): name the model's folder")
    known = _remembered(memory)
    hashes = {str(path): _known_or_hashed(path, known) for path in files}
    _remember(memory, known | hashes)
    whole = xxhash.xxh3_128()
    for path in files:
        whole.update(f"{path.name}\0{hashes[str(path)][1]}\0".encode())
    return whole.hexdigest()


def snapshot_commit(model: Path) -> str | None:
    """The commit hash that a hub cache's snapshot folder is named by; None for any other folder."""
    real = model.absolute()
    named = real.parent.name == "snapshots" and _COMMIT.fullmatch(real.name)
    return real.name if named else None


_Known = dict[str, tuple[list[int], str]]
"""Path → ([size, mtime in ns, inode], hash)."""


def _known_or_hashed(path: Path, known: _Known) -> tuple[list[int], str]:
    stat = path.stat()
    identity = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    found = known.get(str(path))
    return found if found is not None and found[0] == identity else (identity, _hash(path))


def _hash(path: Path) -> str:
    digest, chunk = xxhash.xxh3_128(), allocate(_CHUNK)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            digest.update(chunk[:size])
    return digest.hexdigest()


def _remembered(memory: Path) -> _Known:
    """What is remembered; a file that is missing or damaged remembers nothing."""
    try:
        raw = json.loads(memory.read_bytes())
        return {path: (list(map(int, identity)), str(name)) for path, (identity, name) in raw.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(memory: Path, known: _Known) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    draft = memory.with_name(f"{memory.name}.{secrets.token_hex(4)}")
    draft.write_text(json.dumps(known))
    draft.replace(memory)
