"""`hpkv agent`: ask an engine's agent, as the gateway does."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from engine_adapters.agent.ask import Prompt
    from engine_adapters.agent.client import AgentClient

agent = typer.Typer(no_args_is_help=True, help="Ask an engine's agent what its cache has, and what to keep.")

T = TypeVar("T")

Where = Annotated[
    str, typer.Option("--agent", envvar="HPKV_AGENT", help="Its control socket, such as tcp://127.0.0.1:5600")
]
KeyFile = Annotated[
    Path | None, typer.Option(envvar="HPKV_AGENT_KEY_FILE", help="Own secret key, where agents ask for keys")
]
ServerKey = Annotated[
    Path | None, typer.Option(envvar="HPKV_AGENT_SERVER_KEY", help="The agent's public key; with --key-file")
]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds to wait for an answer")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON")]
Tokens = Annotated[
    Path, typer.Option("--tokens", help="File with the prompt's token ids as a JSON list; - reads it")
]
SaltFile = Annotated[Path | None, typer.Option(help="File with the request's cache salt (or set HPKV_SALT)")]
Lora = Annotated[str | None, typer.Option(help="Name of the request's LoRA adapter")]
Seconds = Annotated[float, typer.Option(min=0.001, help="For how long")]
Tier = Annotated[str, typer.Argument(help="host, ssd or shared")]


@agent.command()
def hello(
    agent: Where,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 5,
    json: Json = False,
) -> None:
    """Tell which engine it is, and which tiers it has."""
    _ask(agent, key_file, server_key, timeout, json, lambda client: client.hello())


@agent.command()
def stats(
    agent: Where,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 5,
    json: Json = False,
) -> None:
    """Tell what happened in the tiers since the engine's start, and how fast they are."""
    _ask(agent, key_file, server_key, timeout, json, lambda client: client.stats())


@agent.command()
def match(
    agent: Where,
    tokens: Tokens,
    salt_file: SaltFile = None,
    lora: Lora = None,
    computed: Annotated[int, typer.Option(min=0, help="Tokens that the engine has computed already")] = 0,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 5,
    json: Json = False,
) -> None:
    """Tell where a prompt's pages lie, and how far a request would load them."""
    given = _prompt(tokens, salt_file, lora)
    _ask(agent, key_file, server_key, timeout, json, lambda client: client.match(*given, computed=computed))


@agent.command()
def prefetch(
    agent: Where,
    tokens: Tokens,
    salt_file: SaltFile = None,
    lora: Lora = None,
    seconds: Seconds = 60,
    computed: Annotated[int, typer.Option(min=0, help="Tokens that the engine has computed already")] = 0,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 5,
    json: Json = False,
) -> None:
    """Bring a prompt's pages into host memory, and protect them for a while. Doesn't wait for them."""
    given = _prompt(tokens, salt_file, lora)

    def ask(client: "AgentClient") -> Awaitable[object]:
        return client.prefetch(*given, seconds=seconds, computed=computed)

    _ask(agent, key_file, server_key, timeout, json, ask)


@agent.command()
def status(
    agent: Where,
    ticket: Annotated[int, typer.Argument(help="As `prefetch` tells it")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Give the prefetch up")] = False,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 5,
    json: Json = False,
) -> None:
    """Tell how far a prefetch is."""

    def ask(client: "AgentClient") -> Awaitable[object]:
        return client.cancel(ticket) if cancel else client.status(ticket)

    _ask(agent, key_file, server_key, timeout, json, ask)


@agent.command()
def pin(
    agent: Where,
    tokens: Tokens,
    salt_file: SaltFile = None,
    lora: Lora = None,
    seconds: Seconds = 600,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 5,
    json: Json = False,
) -> None:
    """Keep a prompt's pages in host and ssd for a while."""
    given = _prompt(tokens, salt_file, lora)
    _ask(agent, key_file, server_key, timeout, json, lambda client: client.pin(*given, seconds=seconds))


@agent.command()
def unpin(
    agent: Where,
    tokens: Tokens,
    salt_file: SaltFile = None,
    lora: Lora = None,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 5,
    json: Json = False,
) -> None:
    """Keep them no longer."""
    given = _prompt(tokens, salt_file, lora)
    _ask(agent, key_file, server_key, timeout, json, lambda client: client.unpin(*given))


@agent.command()
def clear(
    agent: Where,
    tier: Annotated[str | None, typer.Option(help="Only this one: host, ssd or shared")] = None,
    salt_file: SaltFile = None,
    everything: Annotated[bool, typer.Option("--all", help="All tenants' pages")] = False,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 60,
    json: Json = False,
) -> None:
    """Remove one tenant's pages, those of a cache salt, or with --all everybody's."""
    from engine_adapters.agent.ask import read_salt, tier_of

    salt = _checked(lambda: read_salt(salt_file))
    if salt is None and not everything:
        raise typer.BadParameter(
            "pass --salt-file FILE (or set HPKV_SALT) to remove one tenant's pages, or --all for everybody's"
        )
    if salt is not None and everything:
        raise typer.BadParameter(
            "--all removes everybody's pages, a salt (--salt-file or HPKV_SALT) one tenant's: leave one out"
        )
    wanted = None if tier is None else _checked(lambda: tier_of(tier))
    _ask(agent, key_file, server_key, timeout, json, lambda client: client.clear(wanted, salt))


@agent.command()
def snapshot(
    agent: Where,
    tier: Tier,
    key_file: KeyFile = None,
    server_key: ServerKey = None,
    timeout: Timeout = 60,
    json: Json = False,
) -> None:
    """Count a tier's pages; with --json, list them: prefix key and the token at which each ends."""
    from engine_adapters.agent.ask import gather, tier_of

    wanted = _checked(lambda: tier_of(tier))
    _ask(agent, key_file, server_key, timeout, json, lambda client: gather(client, wanted))


@agent.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where to put secret.key and public.key")],
) -> None:
    """Make a CURVE key pair, for an agent or for one of its clients."""
    from engine_adapters.agent.keys import make

    typer.echo(_checked(lambda: make(folder)).decode())


def _prompt(tokens: Path, salt_file: Path | None, lora: str | None) -> "Prompt":
    from engine_adapters.agent.ask import Prompt, read_salt, read_tokens

    return _checked(lambda: Prompt(read_tokens(tokens), read_salt(salt_file), lora))


def _ask(
    where: str,
    key_file: Path | None,
    server_key: Path | None,
    timeout_s: float,
    json: bool,
    call: Callable[["AgentClient"], Awaitable[object]],
) -> None:
    """Ask, and print the answer."""
    from engine_adapters.agent import ask

    answer = _checked(lambda: ask.ask(where, ask.read_keys(key_file, server_key), timeout_s, call))
    for line in [ask.as_json(answer)] if json else ask.as_text(answer):
        typer.echo(line)


def _checked(work: Callable[[], T]) -> T:
    """End with what is wrong, if something is."""
    from engine_adapters.errors import EngineError, SettingsError

    try:
        return work()
    except (EngineError, SettingsError) as error:
        typer.echo(f"hpkv agent: {error}", err=True)
        raise typer.Exit(1) from None
