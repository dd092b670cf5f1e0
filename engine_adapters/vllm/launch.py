"""`hpkv launch vllm`: check all that can be known before the model loads, and say how vLLM is called."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_adapters import shared_memory
from engine_adapters.errors import SettingsError
from engine_adapters.settings import Settings, Tiers
from engine_adapters.tiers import NONE

from . import flags
from .flags import Endpoints
from .settings import load_settings

OLDEST = (0, 32)
_IMPORTS = (
    "import importlib.metadata, json, xxhash, cache.prefix, engine_adapters.vllm.settings; "
    "print(json.dumps(importlib.metadata.version('vllm')))"
)


@dataclass(frozen=True)
class Launch:
    """A vLLM server to be: its model, its tiers, where its events are, and flags of the user's own."""

    model: str
    tiers: Tiers
    endpoints: Endpoints
    flags: tuple[str, ...] = ()

    def settings(self, environ: Mapping[str, str]) -> Settings:
        """What the engine will read. Raises SettingsError."""
        return load_settings(self.tiers.configuration(), environ)


def command(launch: Launch, executable: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the command line. Raises SettingsError, also for a flag that would undo one of ours."""
    flags.refuse_clashes(launch.flags)
    ours = flags.watched(launch.endpoints)
    if launch.settings(environ).mode != NONE:  # which the environment alone may have set
        ours += flags.tiered(launch.tiers.configuration())
    return [str(executable), "serve", launch.model, *ours, *launch.flags]


def check(launch: Launch, executable: Path, environ: Mapping[str, str]) -> None:
    """Refuse what can't work, in seconds. Raises SettingsError."""
    host = launch.settings(environ).host
    if host is not None:
        shared_memory.require(host)
    check_environment(executable, environ)


def check_environment(executable: Path, environ: Mapping[str, str]) -> None:
    """See that vLLM's Python finds our packages, and not others of the same names."""
    python = python_of(executable)
    told = subprocess.run(
        [python, "-P", "-c", _IMPORTS], env=dict(environ), capture_output=True, text=True, check=False
    )
    if told.returncode:
        last = (told.stderr.strip().splitlines() or ["no message"])[-1]
        raise SettingsError(
            f"{python}, by which {executable} runs, can't import us and vLLM ({last}); "
            f"install both there: {python} -m pip install --no-deps HPKV xxhash, HPKV being its folder"
        )
    version = json.loads(told.stdout)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise SettingsError(
            f"{executable} is vLLM {version}; the tiers need {'.'.join(map(str, OLDEST))} or later"
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


def find_executable(env: Path | None, home: Path | None) -> Path:
    """Find `vllm`: in `env`, else in the environment under `home`, else on PATH. Raises SettingsError."""
    if env is not None:
        executable = env / "bin/vllm"
        if not executable.is_file():
            raise SettingsError(f"--env {env}: there is no bin/vllm; name the folder of vLLM's environment")
        return executable
    if home is not None and (home / "envs/vllm/bin/vllm").is_file():
        return home / "envs/vllm/bin/vllm"
    found = shutil.which("vllm")
    if found is None:
        raise SettingsError("no vllm on PATH: install it, or name its environment with --env FOLDER")
    return Path(found)


def endpoints(events: str, replay: str, given: Sequence[str], environ: Mapping[str, str]) -> Endpoints:
    """Return what is asked for, else private sockets named by the port. Raises SettingsError."""
    if bool(events) != bool(replay):
        raise SettingsError(
            "--events and --replay go together: give both, such as tcp://*:5557 and tcp://*:5558"
        )
    if events:
        return Endpoints(events, replay)
    port, folder = flags.value_of(given, "--port", "8000"), _private_folder(environ)
    return Endpoints(f"ipc://{folder}/vllm-{port}.events", f"ipc://{folder}/vllm-{port}.replay")


def _private_folder(environ: Mapping[str, str]) -> Path:
    """A folder that only this user can enter, for sockets of a gateway of the same user."""
    folder = Path(environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"hpkv-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.lstat()
    if stat.st_uid != os.getuid() or stat.st_mode & 0o077:
        raise SettingsError(f"{folder} is not ours alone: remove it, or give --events and --replay")
    return folder


def announcement(launch: Launch, environ: Mapping[str, str]) -> str:
    """Return what is on, and how the gateway is told of it."""
    settings = launch.settings(environ)
    entry = {
        "url": f"http://HOST:{flags.value_of(launch.flags, '--port', '8000')}",
        "events": launch.endpoints.events.replace("*", "HOST"),
        "replay": launch.endpoints.replay.replace("*", "HOST"),
    }
    return (
        f"hpkv launch: tiers {settings.mode}, loads of {settings.token_threshold} tokens and more; "
        f"for the gateway's replicas: {json.dumps(entry)}"
    )
