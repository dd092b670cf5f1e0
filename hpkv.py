"""The `hpkv` command: each package's commands under one name, imported only when they are used."""

import importlib
import sys
from types import MappingProxyType

COMMANDS = MappingProxyType(
    {
        "serve": "gateway",
        "check-config": "gateway",
        "route": "gateway",
        "cache": "cache",
        "up": "engine_adapters",
        "down": "engine_adapters",
        "launch": "engine_adapters",
        "agent": "engine_adapters",
    }
)
"""Command → the package whose `commands.py` has it."""


def main() -> None:
    """Run the command line."""
    import typer

    named = COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    cli = typer.Typer(
        name="hpkv",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        help="An OpenAI-compatible gateway and a multi-tier KV cache for SGLang and vLLM.",
    )
    for package in [named] if named else dict.fromkeys(COMMANDS.values()):
        cli.add_typer(importlib.import_module(f"{package}.commands").app)
    cli()


if __name__ == "__main__":
    main()
