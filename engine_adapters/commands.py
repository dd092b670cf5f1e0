"""`hpkv launch`: an engine with our part in it. `hpkv up` and `hpkv down`: a local fleet."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
launch = typer.Typer(no_args_is_help=True, help="Run an engine with the cache's tiers in it.")
app.add_typer(launch, name="launch")


UP_TIERS = "host=512MiB,ssd={home}/kv:4GiB"
"""Of each vLLM replica of `hpkv up`: small enough for a laptop. SGLang's have none yet."""


def default_home() -> Path:
    """Where environments, models and the running fleet's state are kept."""
    return Path(os.environ.get("HPKV_HOME") or "~/.cache/hpkv").expanduser().absolute()


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
Env = Annotated[
    Path | None,
    typer.Option(help="The engine's environment (default: its folder in $HPKV_HOME/envs, else PATH)"),
]
Show = Annotated[bool, typer.Option("--print", help="Show the command and start nothing")]


@launch.command("vllm", epilog="vLLM's own flags go behind `--`.")
def launch_vllm(
    model: Model,
    flags: Flags = None,
    tiers: Annotated[
        str, typer.Option(help="Such as host=8GiB,ssd=/data/kv:200GiB,shared=s3://bucket/kv")
    ] = "gpu",
    page_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a page, a multiple of vLLM's blocks (default: one block)"),
    ] = None,
    events: Events = "",
    replay: Replay = "",
    env: Env = None,
    show: Show = False,
) -> None:
    """Become `vllm serve`, with KV events on and the tiers in it; signals reach the engine."""
    from engine_adapters import launching
    from engine_adapters.flags import value_of
    from engine_adapters.tiers import parse_tiers
    from engine_adapters.vllm import launch as vllm

    environ, given = dict(os.environ), tuple(flags or ())
    with _refusing():
        executable = launching.find_executable("vllm", env, _home(environ))
        name = f"vllm-{value_of(given, '--port', vllm.PORT)}"
        endpoints = launching.endpoints(events, replay, name, environ)
        one = vllm.Launch(model, parse_tiers(tiers), endpoints, given, page_tokens)
        command = vllm.command(one, executable, environ)
        if not show:
            vllm.check(one, executable, environ)
    _become(executable, command, environ, vllm.announcement(one, environ), show)


@launch.command("sglang", epilog="SGLang's own flags go behind `--`.")
def launch_sglang(
    model: Model,
    flags: Flags = None,
    events: Events = "",
    replay: Replay = "",
    env: Env = None,
    show: Show = False,
) -> None:
    """Become `sglang serve`, with KV events on and pages of 16 tokens; signals reach the engine."""
    from engine_adapters import launching
    from engine_adapters.flags import value_of
    from engine_adapters.sglang import launch as sglang

    environ, given = dict(os.environ), tuple(flags or ())
    with _refusing():
        executable = launching.find_executable("sglang", env, _home(environ))
        name = f"sglang-{value_of(given, '--port', sglang.PORT)}"
        one = sglang.Launch(model, launching.endpoints(events, replay, name, environ), given)
        command = sglang.command(one, executable)
        if not show:
            sglang.check(executable, environ)
    _become(executable, command, environ, sglang.announcement(one), show)


def _home(environ: Mapping[str, str]) -> Path | None:
    return Path(home) if (home := environ.get("HPKV_HOME")) else None


@contextmanager
def _refusing() -> Iterator[None]:
    """End with what is wrong, if something is."""
    from engine_adapters.errors import SettingsError

    try:
        yield
    except SettingsError as error:
        typer.echo(f"hpkv launch: {error}", err=True)
        raise typer.Exit(1) from None


def _become(
    executable: Path, command: list[str], environ: dict[str, str], announcement: str, show: bool
) -> None:
    import shlex

    if show:
        typer.echo(shlex.join(command))
        return
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
        typer.Option(envvar="HPKV_UP_ENGINES", help="URLs of engines that run already, instead of new ones"),
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
            help="Each replica's tiers, as for launch (default: host=512MiB,ssd=$HPKV_HOME/kv:4GiB)",
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
    import shlex

    from rich.console import Console

    from engine_adapters.errors import SettingsError
    from engine_adapters.tiers import NONE, parse_tiers
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
            tiers=parse_tiers(tiers or (UP_TIERS.format(home=home) if engine == "vllm" else NONE)),
            engine_args=tuple(shlex.split(engine_args)),
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


@app.command()
def down(state: State = None) -> None:
    """End what `hpkv up` has started, also after a crash, and nothing else."""
    from engine_adapters.up.state import Folder
    from engine_adapters.up.state import down as end

    ended = end(Folder((state or default_home() / "up").absolute()))
    typer.echo(f"ended {ended} processes" if ended else "nothing is running")
