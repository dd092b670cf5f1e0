"""`hpkv serve`, `hpkv check-config` and `hpkv route`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer()

Config = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file with the settings.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on.")]
ReplicaUrls = Annotated[
    list[str] | None, typer.Option("--replica", help="URL of a vLLM replica, or sglang+URL; repeat for more.")
]
PolicyName = Annotated[str | None, typer.Option("--policy", help="Routing policy, see docs/routing.md.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]


@app.command()
def serve(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    replica: ReplicaUrls = None,
    policy: PolicyName = None,
    log_level: LogLevel = None,
) -> None:
    """Run the gateway."""
    settings = _load(config, host, port, replica, policy, log_level)
    from gateway.server import serve as run
    from gateway.settings import SettingsError
    from gateway.telemetry.logs import configure_logging

    configure_logging(settings.log)
    try:
        run(settings)
    except SettingsError as error:
        typer.echo(f"hpkv: {error}", err=True)
        raise typer.Exit(1) from None


@app.command("check-config")
def check_config(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    replica: ReplicaUrls = None,
    policy: PolicyName = None,
    log_level: LogLevel = None,
) -> None:
    """Check the settings and print them as they would be used, without keys."""
    settings = _load(config, host, port, replica, policy, log_level)
    import yaml

    shown = settings.model_dump(mode="json", exclude={"access": {"api_keys", "admin_keys"}})
    shown["access"]["api_keys"] = f"{len(settings.access.api_keys)} keys"
    shown["access"]["admin_keys"] = f"{len(settings.access.admin_keys)} keys"
    typer.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)


@app.command()
def route(
    model: Annotated[str, typer.Option(help="Model that the request asks for.")] = "",
    prompt: Annotated[str, typer.Option(help="A user's message.")] = "",
    body: Annotated[
        Path | None, typer.Option(help="File with a request's JSON body instead; - reads it.")
    ] = None,
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8000",
    key: Annotated[str, typer.Option(envvar="HPKV_ADMIN_KEY", help="Admin key.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Show what the choice was made from.")] = False,
) -> None:
    """Ask a gateway where a request would go, without sending it."""
    from gateway.ask import AskError, ask_route

    try:
        for line in ask_route(url, key, _request_body(model, prompt, body), explain=explain):
            typer.echo(line)
    except AskError as error:
        typer.echo(f"hpkv: {error}", err=True)
        raise typer.Exit(1) from None


def _request_body(model: str, prompt: str, body: Path | None) -> bytes:
    import orjson

    if body is not None:
        try:
            return sys.stdin.buffer.read() if str(body) == "-" else body.read_bytes()
        except OSError as error:
            raise typer.BadParameter(f"--body {body}: {error.strerror}") from None
    if not model or not prompt:
        raise typer.BadParameter("give --model and --prompt, or --body")
    return orjson.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]})


def _load(
    config: Path | None,
    host: str | None,
    port: int | None,
    replicas: list[str] | None,
    policy: str | None,
    log_level: str | None,
) -> Any:
    from gateway.settings import SettingsError, load_settings

    flags: dict[str, Any] = {}
    for section, key, value in (
        ("listen", "host", host),
        ("listen", "port", port),
        ("routing", "policy", policy),
        ("log", "level", log_level),
    ):
        if value is not None:
            flags.setdefault(section, {})[key] = value
    if replicas:
        flags["replicas"] = replicas
    try:
        return load_settings(config, flags)
    except SettingsError as error:
        typer.echo(f"hpkv: {error}", err=True)
        raise typer.Exit(2) from None
