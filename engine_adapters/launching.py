"""`hpkv launch`: what is the same for every engine."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints
from engine_adapters.registration import reachable
from engine_adapters.settings import PREFIX
from engine_adapters.wire import LONGEST_PATH

NO_AGENT = "none"
REPLICA_URL = f"{PREFIX}GATEWAY__REPLICA_URL"
_LONGEST_NAME = "/sglang-65535.agent.replay"

Section = dict[str, Any]


class Server(NamedTuple):
    """Where an engine's HTTP server will listen; an empty host is all of the machine's addresses."""

    scheme: str
    host: str
    port: str
    ranks: int

    @property
    def address(self) -> str:
        """What it binds, as a ZeroMQ endpoint would say it."""
        return f"tcp://{_bracketed(self.host) or '*'}:{self.port}"


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


def find_executable(program: str, env: Path | None, home: Path | None, *, to_run: bool = True) -> Path:
    """Find `program`: in `env`, else in its environment under `home`, else on PATH. Raises SettingsError.

    With `to_run` false, nobody looks into `env`, and a program that is nowhere is its name alone, for a
    machine that has it.
    """
    if env is not None:
        executable = env / "bin" / program
        if to_run and not executable.is_file():
            raise SettingsError(f"--env {env}: there is no bin/{program}; name the folder of its environment")
        return executable
    if home is not None and (home / "envs" / program / "bin" / program).is_file():
        return home / "envs" / program / "bin" / program
    found = shutil.which(program)
    if found is None and not to_run:
        return Path(program)
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


def agent_socket(agent: str, name: str, environ: Mapping[str, str]) -> str:
    """Where an agent answers if `agent` doesn't say: at a private socket. Raises SettingsError."""
    return "" if agent else f"ipc://{_private_folder(environ)}/{name}.agent"


def gateway_section(url: str, key_file: Path | None, server: Server, environ: Mapping[str, str]) -> Section:
    """The settings by which an engine registers itself. Raises SettingsError."""
    if not url:
        if key_file is not None:
            raise SettingsError("--gateway-key-file is for --gateway: give its URL, too")
        return {}
    section: Section = {"url": url, "ranks": server.ranks}
    if REPLICA_URL not in environ:
        host = _bracketed(server.host or _own_address(url))
        section["replica_url"] = f"{server.scheme}://{host}:{server.port}"
    if key_file is not None:
        section["admin_key_file"] = str(key_file.absolute())
    return section


def _own_address(gateway: str) -> str:
    """This machine's address on the way to a gateway; nothing is sent."""
    try:
        parts = urlsplit(gateway)
        family, kind, *_, where = socket.getaddrinfo(
            parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            host: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"--gateway {gateway}: it can't be found from here ({error}); write http://HOST:PORT, and set "
            f"{REPLICA_URL} if this machine isn't the engine's"
        ) from error
    return host


def _private_folder(environ: Mapping[str, str]) -> Path:
    """A folder that only this user can enter, for sockets of a gateway of the same user."""
    folder = Path(environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"hpkv-{os.getuid()}"
    if len(os.fsencode(folder)) + len(_LONGEST_NAME) > LONGEST_PATH:
        raise SettingsError(
            f"{folder} is too long for the paths of sockets: set XDG_RUNTIME_DIR to a shorter folder, or "
            "give --events, --replay and --agent"
        )
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{folder}, for sockets, can't be made ({error.strerror}): let XDG_RUNTIME_DIR or TMPDIR name a "
            "folder that can be written, or give --events, --replay and --agent"
        ) from error
    stat = folder.lstat()
    if stat.st_uid != os.getuid() or stat.st_mode & 0o077:
        raise SettingsError(f"{folder} is not ours alone: remove it, or give --events and --replay")
    return folder


def rank_endpoints(endpoint: str, ranks: int) -> list[str]:
    """Where each rank binds what rank 0 has at `endpoint`: ports in a row."""
    address, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp:"):
        return [endpoint]
    return [f"{address}:{int(port) + rank}" for rank in range(ranks)]


def refuse_shared_ports(endpoints: Endpoints, ranks: int) -> None:
    """Raise SettingsError unless each data-parallel rank has addresses of its own for events and replay."""
    if ranks == 1:
        return
    events, replay = (rank_endpoints(endpoint, ranks) for endpoint in (endpoints.events, endpoints.replay))
    if len({*events, *replay}) != 2 * ranks:
        raise SettingsError(
            f"{ranks} data-parallel ranks publish at {ranks} ports in a row: give --events and --replay "
            f"so far apart, such as tcp://*:5557 and tcp://*:{5557 + max(ranks, 100)}"
        )


def require_bindable(flag: str, endpoints: Iterable[str]) -> None:
    """Raise SettingsError if a TCP address is taken; `flag` is what names another."""
    for endpoint in endpoints:
        found = re.fullmatch(r"tcp://\[?([^\]]*)\]?:(\d+)", endpoint)
        if found is None:
            continue
        host, port = "" if found[1] == "*" else found[1], int(found[2])
        if port > 65535:
            raise SettingsError(f"{flag}: {endpoint} has no port that there is: choose one up to 65535")
        try:
            with socket.create_server((host, port), family=_family(host)):
                pass
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise SettingsError(
                f"{flag}: {endpoint} can't be had ({why}): choose another port, or end what has it"
            ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def entry(server: Server, engine: str, endpoints: Endpoints, agent: str = "", agent_key: str = "") -> str:
    """Return what the gateway's settings say of a replica.

    HOST stands for an address that is open to other machines. With socket files alone there are none.
    """
    bound = [endpoint for endpoint in (endpoints.events, endpoints.replay, agent) if endpoint]
    elsewhere = any(endpoint.startswith("tcp:") for endpoint in bound)
    host = server.host or ("HOST" if elsewhere else "127.0.0.1")
    url = f"{server.scheme}://{_bracketed(host)}:{server.port}"
    said = {
        "url": url,
        "engine": engine,
        "events": reachable(endpoints.events, url),
        "replay": reachable(endpoints.replay, url),
        "agent": reachable(agent, url),
        "agent_key": agent_key,
        "ranks": server.ranks if server.ranks > 1 else 0,
    }
    return json.dumps({name: value for name, value in said.items() if value})


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
