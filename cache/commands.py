"""`hpkv cache`: look at and look after cache folders."""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from cache.maintenance import Maintenance

T = TypeVar("T")

app = typer.Typer()
cache = typer.Typer(no_args_is_help=True, help="Look at and look after cache folders.")
app.add_typer(cache, name="cache")

Target = Annotated[str, typer.Argument(metavar="FOLDER", help="A cache folder.")]
Tenant = Annotated[
    str | None,
    typer.Option(help="Only this tenant: its tag in hex, as `ls` and the engines' statistics show it."),
]


@cache.command()
def stat(folder: Target) -> None:
    """Show what a folder holds."""
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    with _explained():
        parts = _open(folder).parts()
    table = Table("part", "base", "page", "pages", "on disk", "")
    for part in parts:
        state = "in use" if part.in_use else "at rest" if part.base else "unusable"
        page = decimal(part.page_bytes) if part.page_bytes else ""
        table.add_row(part.name, part.base.hex(), page, f"{part.pages:,}", decimal(part.bytes), state)
    total = sum(part.bytes for part in parts)
    table.add_row("all", "", "", f"{sum(part.pages for part in parts):,}", decimal(total), "")
    Console().print(table)


@cache.command()
def ls(
    folder: Target,
    limit: Annotated[int, typer.Option(help="At most so many lines.")] = 1000,
    tenant: Tenant = None,
) -> None:
    """List pages: part, namespace, key, end token, tenant tag, bytes."""
    with _explained():
        wanted = _tag(tenant)
        found = (one for one in _open(folder).pages() if wanted is None or one.page.tenant == wanted)
        for one in islice(found, limit):
            key, tag = one.page.key.hex(), f"{one.page.tenant:016x}"
            typer.echo(f"{one.part} {one.namespace.hex()} {key} {one.page.end_token} {tag} {one.bytes}")
        if next(found, None) is not None:
            typer.echo(f"… and more; --limit shows them (now {limit})", err=True)


@cache.command()
def verify(folder: Target) -> None:
    """Read and check every byte of every page, changing nothing; living processes don't mind.

    Exits 1 when a page is damaged.
    """
    from cache.record import Verdict

    damaged = 0
    with _explained():
        store = _open(folder)
        total = sum(part.pages for part in store.parts())
        for checked in _progress(store.verify(), "verifying", total):
            if checked.verdict is not Verdict.WHOLE:
                damaged += 1
                one = checked.stored
                typer.echo(f"{one.part} {one.namespace.hex()} {one.page.key.hex()}: {checked.verdict.value}")
    typer.echo(f"{damaged} damaged pages" if damaged else "all pages are whole")
    raise typer.Exit(1 if damaged else 0)


@cache.command()
def gc(
    folder: Target,
    max_bytes: Annotated[
        int | None, typer.Option(help="Remove least recently used pages until so many bytes are left.")
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(help="Remove pages written more than so many hours ago.")
    ] = None,
) -> None:
    """Remove what nobody can use any more, and what the options name; living processes keep their own."""
    with _explained():
        store = _open(folder)
        age = None if older_than is None else older_than * 3600
        removed = sum(one.bytes for one in _progress(store.collect(max_bytes, age), "collecting", None))
    typer.echo(f"{removed} bytes removed")


@cache.command()
def clear(
    folder: Target,
    tenant: Tenant = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Remove everything, or one tenant's pages, for good."""
    with _explained():
        store = _open(folder)
        tag = _tag(tenant)
        what = "all pages" if tag is None else f"the pages of tenant {tag:016x}"
        if not yes:
            typer.confirm(f"Remove {what} from {folder}?", abort=True)
        typer.echo(f"{store.clear(tag)} pages removed")


def _open(target: str) -> "Maintenance":
    from cache.maintenance import open_store

    return open_store(target)


def _tag(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text, 16)
    except ValueError as error:
        raise typer.BadParameter(f"a tenant tag is a hexadecimal number, not {text!r}") from error


def _progress(items: Iterable[T], label: str, total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return iter(track(items, label, total=total, console=console, disable=not console.is_terminal))


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """An error of ours, or of the system, is one line and exit status 2; no traceback."""
    from cache.errors import CacheError

    try:
        yield
    except (CacheError, OSError) as error:
        typer.echo(f"hpkv cache: {error}", err=True)
        raise typer.Exit(2) from error
