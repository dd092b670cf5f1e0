"""`hpkv up` and `hpkv down`: a local fleet."""

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


def default_home() -> Path:
    """Where environments, models and the running fleet's state are kept."""
    return Path(os.environ.get("HPKV_HOME") or "~/.cache/hpkv").expanduser().absolute()


State = Annotated[
    Path | None,
    typer.Option(
        envvar="HPKV_UP_STATE", help="Folder of this fleet's state and logs (default: $HPKV_HOME/up)"
    ),
]


@app.command()
def up(
    model: Annotated[
        str, typer.Option(envvar="HPKV_UP_MODEL", help="Folder or hub name (default: SmolLM2-135M-Instruct)")
    ] = "",
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
            engines=tuple(engines.split()),
            port=port,
            engine_port=engine_port,
            replicas=replicas,
            engine_args=tuple(shlex.split(engine_args)),
            start_timeout=start_timeout,
        )
        if prepare_only:
            fleet.prepare(options, progress)
        else:
            fleet.up(options, progress)
    except UpError as error:
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
