"""`hpkv launch`: an engine with our part in it. `hpkv up` and `hpkv down`: a local fleet. `hpkv agent`."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from engine_adapters.agent.commands import agent

app = typer.Typer()
app.add_typer(agent, name="agent")
launch = typer.Typer(no_args_is_help=True, help="Run an engine with the cache's tiers in it.")
app.add_typer(launch, name="launch")


UP_TIERS = "host={host},ssd={home}/kv:4GiB"
"""Of each replica of `hpkv up`: small enough for a laptop."""
UP_HOST = {"vllm": "512MiB"}
"""Where SGLang is among them, it is the least that SGLang can have."""


def default_home() -> Path:
    """Where environments, models and the running fleet's state are kept: $HPKV_HOME, else where the
    environment of this very command is (as `make` has it), else the user's cache."""
    if home := os.environ.get("HPKV_HOME"):
        return Path(home).expanduser().absolute()
    ours = Path(sys.prefix)
    if ours.parent.name == "envs" and (ours / ".made").is_file():
        return ours.parent.parent
    return Path("~/.cache/hpkv").expanduser()


State = Annotated[
    Path | None,
    typer.Option(
        envvar="HPKV_UP_STATE", help="Folder of this fleet's state and logs (default: $HPKV_HOME/up)"
    ),
]


Model = Annotated[str, typer.Argument(help="Folder or hub name")]
Flags = Annotated[list[str] | None, typer.Argument(metavar="-- FLAGS", help="Any flags of the engine's")]
Events = Annotated[
    str, typer.Option(help="Where KV events are: ipc://PATH or tcp://*:PORT (default: a private socket)")
]
Replay = Annotated[str, typer.Option(help="Where missed KV events are sent again; goes with --events")]
Agent = Annotated[
    str,
    typer.Option(
        help="Where the agent answers: tcp://HOST:PORT, ipc://PATH or none (default: a private socket)"
    ),
]
Gateway = Annotated[str, typer.Option(help="URL of the gateway at which the engine registers itself")]
GatewayKey = Annotated[
    Path | None, typer.Option(help="File with one of the gateway's admin keys; goes with --gateway")
]
Env = Annotated[
    Path | None,
    typer.Option(help="The engine's environment (default: its folder in $HPKV_HOME/envs, else PATH)"),
]
TierLine = Annotated[str, typer.Option(help="Such as host=8GiB,ssd=/data/kv:200GiB,shared=s3://bucket/kv")]
Show = Annotated[bool, typer.Option("--print", help="Show the command and start nothing")]


class _Launch(TyperCommand):
    """Says where an engine's flag goes that stands before `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if error.message.startswith("No such option"):
                error.message += " here; the engine's own flags go behind `--`."
            raise


@launch.command("vllm", cls=_Launch, epilog="vLLM's own flags go behind `--`.")
def launch_vllm(
    model: Model,
    flags: Flags = None,
    tiers: TierLine = "gpu",
    page_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a page, a multiple of vLLM's blocks (default: one block)"),
    ] = None,
    events: Events = "",
    replay: Replay = "",
    agent: Agent = "",
    gateway: Gateway = "",
    gateway_key_file: GatewayKey = None,
    env: Env = None,
    show: Show = False,
) -> None:
    """Become `vllm serve`, with KV events on and the tiers in it; signals reach the engine."""
    from engine_adapters.vllm import launch as vllm
    from engine_adapters.vllm.settings import variables

    environ, given = dict(os.environ), tuple(flags or ())
    with _refusing():
        executable, asked = _asked(
            vllm, given, environ, tiers, events, replay, agent, gateway, gateway_key_file, env, show
        )
        one = vllm.Launch(model=model, flags=given, page_tokens=page_tokens, **asked)
        command = vllm.command(one, executable, environ)
        if not show:
            vllm.check(one, executable, environ)
    if show:
        _print(command, variables(environ))
    else:
        _become(executable, command, environ, one.announcement(environ))


@launch.command("sglang", cls=_Launch, epilog="SGLang's own flags go behind `--`.")
def launch_sglang(
    model: Model,
    flags: Flags = None,
    tiers: TierLine = "gpu",
    events: Events = "",
    replay: Replay = "",
    agent: Agent = "",
    gateway: Gateway = "",
    gateway_key_file: GatewayKey = None,
    env: Env = None,
    show: Show = False,
) -> None:
    """Become `sglang serve`, with KV events on and the tiers under it; signals reach the engine."""
    from engine_adapters.sglang import launch as sglang
    from engine_adapters.sglang.settings import variables

    environ, given = dict(os.environ), tuple(flags or ())
    with _refusing():
        executable, asked = _asked(
            sglang, given, environ, tiers, events, replay, agent, gateway, gateway_key_file, env, show
        )
        one = sglang.Launch(model=model, flags=given, **asked)
        command = sglang.command(one, executable, environ)
        notice = sglang.notice(one, environ)
        if not show:
            sglang.check(one, executable, environ)
    if notice:
        typer.echo(f"hpkv launch: {notice}", err=True)
    if show:
        _print(command, variables(environ))
    else:
        _become(executable, command, environ, one.announcement(environ))


def _asked(
    engine: Any,
    flags: tuple[str, ...],
    environ: Mapping[str, str],
    tiers: str,
    events: str,
    replay: str,
    agent: str,
    gateway: str,
    gateway_key_file: Path | None,
    env: Path | None,
    show: bool,
) -> tuple[Path, dict[str, Any]]:
    """The engine's command, and what every engine's launch is told. `engine` is its `launch` module."""
    from engine_adapters import launching
    from engine_adapters.flags import value_of
    from engine_adapters.tiers import parse_tiers

    kind = engine.Launch.engine
    name = f"{kind}-{value_of(flags, '--port', engine.Launch.port)}"
    return launching.find_executable(kind, env, default_home(), to_run=not show), {
        "tiers": parse_tiers(tiers),
        "endpoints": launching.endpoints(events, replay, name, environ),
        "agent": "" if agent == launching.NO_AGENT else agent,
        "socket": launching.agent_socket(agent, name, environ),
        "gateway": launching.gateway_section(gateway, gateway_key_file, engine.Launch.server(flags), environ),
    }


@contextmanager
def _refusing() -> Iterator[None]:
    """End with what is wrong, if something is."""
    from engine_adapters.errors import SettingsError

    try:
        yield
    except SettingsError as error:
        typer.echo(f"hpkv launch: {error}", err=True)
        raise typer.Exit(1) from None


def _print(command: list[str], variables: Mapping[str, str]) -> None:
    """As a shell takes it, what was set by variables too."""
    import shlex

    set_ = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    typer.echo(" ".join([*set_, shlex.join(command)]))


def _become(executable: Path, command: list[str], environ: dict[str, str], announcement: str) -> None:
    typer.echo(announcement, err=True)
    environ["PATH"] = f"{executable.parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    os.execve(executable, command, environ)


@app.command()
def up(
    model: Annotated[
        str, typer.Option(envvar="HPKV_UP_MODEL", help="Folder or hub name (default: SmolLM2-135M-Instruct)")
    ] = "",
    engine: Annotated[
        str, typer.Option(envvar="HPKV_UP_ENGINE", help="vllm, sglang, or mixed: by turns")
    ] = "vllm",
    engines: Annotated[
        str,
        typer.Option(
            envvar="HPKV_UP_ENGINES",
            help="URLs of engines of either kind that run already, instead of new ones",
        ),
    ] = "",
    port: Annotated[
        int, typer.Option(envvar="HPKV_UP_PORT", min=1, max=65535, help="The gateway's port")
    ] = 8000,
    engine_port: Annotated[
        int,
        typer.Option(
            envvar="HPKV_UP_ENGINE_PORT", min=1, max=65535, help="The first replica's port; others follow"
        ),
    ] = 8101,
    replicas: Annotated[int, typer.Option(envvar="HPKV_UP_REPLICAS", help="How many replicas to start")] = 2,
    tiers: Annotated[
        str,
        typer.Option(
            envvar="HPKV_UP_TIERS",
            help="Each replica's tiers, as for launch (default: host=512MiB, with SGLang 1GB, and "
            "ssd=$HPKV_HOME/kv:4GiB)",
        ),
    ] = "",
    engine_args: Annotated[
        str, typer.Option(envvar="HPKV_UP_ENGINE_ARGS", help="More flags for each replica, as in a shell")
    ] = "",
    start_timeout: Annotated[
        float, typer.Option(envvar="HPKV_UP_START_TIMEOUT", help="Seconds until a start has failed")
    ] = 600.0,
    state: State = None,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Make the environment and the model, and start nothing")
    ] = False,
) -> None:
    """Start engine replicas and the gateway on this machine, until Ctrl-C."""
    from rich.console import Console

    from engine_adapters.errors import SettingsError
    from engine_adapters.tiers import parse_tiers
    from engine_adapters.up import fleet
    from engine_adapters.up.errors import UpError
    from engine_adapters.up.options import Options
    from engine_adapters.up.progress import Progress

    progress = Progress(Console())
    home = default_home()
    try:
        options = Options(
            home=home,
            state=(state or home / "up").absolute(),
            model=model,
            engine=engine,
            engines=tuple(engines.split()),
            port=port,
            engine_port=engine_port,
            replicas=replicas,
            tiers=parse_tiers(tiers or UP_TIERS.format(host=UP_HOST.get(engine, "1GB"), home=home)),
            engine_args=_words(engine_args),
            start_timeout=start_timeout,
        )
        if prepare_only:
            fleet.prepare(options, progress)
        else:
            fleet.up(options, progress)
    except (UpError, SettingsError) as error:
        typer.echo(f"hpkv up: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _words(flags: str) -> tuple[str, ...]:
    """As a shell splits them. Raises SettingsError."""
    import shlex

    from engine_adapters.errors import SettingsError

    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise SettingsError(f"--engine-args (ENGINE_ARGS=): {error} in {flags}") from error


@app.command()
def down(state: State = None) -> None:
    """End what `hpkv up` has started, also after a crash, and nothing else."""
    from engine_adapters.up.state import Folder
    from engine_adapters.up.state import down as end

    folder = Folder((state or default_home() / "up").absolute())
    ended = end(folder)
    nothing = (
        f"nothing is running, by what {folder.path} says. A fleet with another home or state is found by "
        "HPKV_HOME=FOLDER or --state FOLDER, as it was started"
    )
    typer.echo(f"ended {ended} processes" if ended else nothing)
