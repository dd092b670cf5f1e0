"""`hpkv serve` and `hpkv check-config`."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer()

Config = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file with the settings.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on.")]
ReplicaUrls = Annotated[
    list[str] | None, typer.Option("--replica", help="URL of a vLLM replica; repeat for more.")
]
PolicyName = Annotated[str | None, typer.Option("--policy", help="Routing policy.")]
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
    from gateway.telemetry.logs import configure_logging

    configure_logging(settings.log)
    run(settings)


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
