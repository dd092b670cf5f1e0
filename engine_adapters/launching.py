"""`hpkv launch`: what is the same for every engine."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints


@dataclass(frozen=True)
class Needs:
    """What an engine's environment must have: the engine, as `pip` calls it, of a version or later, and what
    its Python must import."""

    engine: str
    distribution: str
    oldest: tuple[int, ...]
    imports: tuple[str, ...]


def check_environment(executable: Path, needs: Needs, environ: Mapping[str, str]) -> None:
    """See that the engine's Python finds our packages, and not others of the same names."""
    python = python_of(executable)
    code = (
        f"import importlib.metadata, json, {', '.join(needs.imports)}; "
        f"print(json.dumps(importlib.metadata.version({needs.distribution!r})))"
    )
    told = subprocess.run(
        [python, "-P", "-c", code], env=dict(environ), capture_output=True, text=True, check=False
    )
    if told.returncode:
        last = (told.stderr.strip().splitlines() or ["no message"])[-1]
        raise SettingsError(
            f"{python}, by which {executable} runs, can't import us and {needs.engine} ({last}); "
            f"install both there, in this project's folder: {python} -m pip install --no-deps . xxhash "
            "(and obstore, for object stores)"
        )
    version = json.loads(told.stdout.splitlines()[-1])
    if tuple(int(part) for part in re.findall(r"\d+", version)[: len(needs.oldest)]) < needs.oldest:
        raise SettingsError(
            f"{executable} is {needs.engine} {version}; {'.'.join(map(str, needs.oldest))} or later is needed"
        )


def python_of(executable: Path) -> str:
    """Return the interpreter that a command, as pip installs it, begins with. Raises SettingsError."""
    try:
        with executable.open("rb") as script:
            head = script.read(512).decode(errors="replace")
    except OSError as error:
        raise SettingsError(f"{executable}: {error.strerror}") from error
    found = re.match(r"#!(?:/bin/sh\n'''exec' \"?)?(/[^\"\n]*?python[\d.]*)\"?\s", head)
    if found is None:
        raise SettingsError(
            f"{executable} is not a command that pip has installed: name an environment with --env"
        )
    return found[1]


def find_executable(program: str, env: Path | None, home: Path | None) -> Path:
    """Find `program`: in `env`, else in its environment under `home`, else on PATH. Raises SettingsError."""
    if env is not None:
        executable = env / "bin" / program
        if not executable.is_file():
            raise SettingsError(f"--env {env}: there is no bin/{program}; name the folder of its environment")
        return executable
    if home is not None and (home / "envs" / program / "bin" / program).is_file():
        return home / "envs" / program / "bin" / program
    found = shutil.which(program)
    if found is None:
        raise SettingsError(f"no {program} on PATH: install it, or name its environment with --env FOLDER")
    return Path(found)


def endpoints(events: str, replay: str, name: str, environ: Mapping[str, str]) -> Endpoints:
    """Return what is asked for, else private sockets of this name. Raises SettingsError."""
    if bool(events) != bool(replay):
        raise SettingsError(
            "--events and --replay go together: give both, such as tcp://*:5557 and tcp://*:5558"
        )
    if events:
        return Endpoints(events, replay)
    folder = _private_folder(environ)
    return Endpoints(f"ipc://{folder}/{name}.events", f"ipc://{folder}/{name}.replay")


def _private_folder(environ: Mapping[str, str]) -> Path:
    """A folder that only this user can enter, for sockets of a gateway of the same user."""
    folder = Path(environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"hpkv-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.lstat()
    if stat.st_uid != os.getuid() or stat.st_mode & 0o077:
        raise SettingsError(f"{folder} is not ours alone: remove it, or give --events and --replay")
    return folder


def entry(port: str, engine: str, endpoints: Endpoints) -> str:
    """Return what the gateway's settings say of a replica; HOST stands for its address."""
    said = {
        "url": f"http://HOST:{port}",
        "engine": engine,
        "events": endpoints.events.replace("*", "HOST"),
        "replay": endpoints.replay.replace("*", "HOST"),
    }
    return json.dumps(said)
