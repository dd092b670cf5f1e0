"""`hpkv cache`: look at and look after cache folders and shared stores."""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from cache.maintenance import Maintenance, Part

T = TypeVar("T")
_WIDEST = 1000

app = typer.Typer()
cache = typer.Typer(no_args_is_help=True, help="Look at and look after cache folders and shared stores.")
app.add_typer(cache, name="cache")

Target = Annotated[
    str, typer.Argument(metavar="FOLDER|URL", help="A cache folder, or a shared store's path or URL.")
]
Tenant = Annotated[
    str | None,
    typer.Option(help="Only this tenant: its tag in hex, as `ls` and the engines' statistics show it."),
]


def _size_of(text: str) -> int:
    from cache.sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@cache.command()
def stat(folder: Target) -> None:
    """Show what a folder or store holds."""
    from rich.console import Console
    from rich.table import Column, Table

    with _explained(folder):
        parts = _open(folder).parts()
    numbers = [Column(name, justify="right") for name in ("page", "pages", "on disk")]
    table = Table("part", "base", *numbers, "state", show_footer=True)
    for part in parts:
        table.add_row(
            part.name,
            part.base.hex(),
            _size(part.page_bytes) if part.base else "",
            f"{part.pages:,}",
            _size(part.bytes),
            _state(part),
        )
    total, taken = sum(part.pages for part in parts), sum(part.bytes for part in parts)
    for column, text in zip(table.columns, ("all", "", "", f"{total:,}", _size(taken), ""), strict=True):
        column.footer = text
    # As wide as it is: names are there to be copied and searched for, so they aren't broken.
    console = Console()
    whole = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    Console(width=max(console.width, whole)).print(table)


@cache.command()
def ls(
    folder: Target,
    limit: Annotated[int, typer.Option(min=1, help="At most so many lines.")] = 1000,
    tenant: Tenant = None,
) -> None:
    """List pages, one a line: part, namespace, key, end token, tenant tag, bytes."""
    with _explained(folder):
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

    checked = damaged = 0
    with _explained(folder):
        store = _open(folder)
        parts = store.parts()
        for one, verdict in _progress(store.verify(), "verifying", sum(part.pages for part in parts)):
            checked += 1
            if verdict is not Verdict.WHOLE:
                damaged += 1
                typer.echo(f"{one.part} {one.namespace.hex()} {one.page.key.hex()}: {verdict.value}")
    for part in parts:
        if not part.base and part.bytes:
            typer.echo(f"part {part.name} has {_size(part.bytes)} that nobody can read: gc removes it")
    if damaged:
        typer.echo(f"{damaged:,} of {checked:,} pages are damaged; engines take them as misses")
        raise typer.Exit(1)
    typer.echo(f"all {checked:,} pages are whole" if checked else "there are no pages")


@cache.command()
def gc(
    folder: Target,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            parser=_size_of,
            metavar="SIZE",
            help="Remove least recently used pages until no more than this is left, such as 200GiB.",
        ),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            min=0, help="Remove pages written (in a shared store: used last) more than so many hours ago."
        ),
    ] = None,
) -> None:
    """Remove what nobody can use any more, and what the options name; living processes keep their own."""
    with _explained(folder):
        store = _open(folder)
        before = sum(part.bytes for part in store.parts())
        age = None if older_than is None else older_than * 3600
        removed = sum(1 for _ in _progress(store.collect(max_bytes, age), "collecting", None))
        after = sum(part.bytes for part in store.parts())
    typer.echo(f"{removed:,} pages removed; {_size(before)} were taken, {_size(after)} are")


@cache.command()
def clear(
    folder: Target,
    tenant: Tenant = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Remove everything, or one tenant's pages, for good."""
    with _explained(folder):
        store = _open(folder)
        tag = _tag(tenant)
        what = "all pages" if tag is None else f"the pages of tenant {tag:016x}"
        if not yes:
            typer.confirm(f"Remove {what} from {folder}?", abort=True)
        removed = sum(_progress(store.clear(tag), "clearing", None))
    typer.echo(f"{removed:,} pages removed")


def _open(target: str) -> "Maintenance":
    from cache.maintenance import open_store

    return open_store(target)


def _tag(text: str | None) -> int | None:
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        tag = int(text, 16)
        if 0 <= tag < 1 << 64:
            return tag
    raise typer.BadParameter(f"a tenant tag is a hexadecimal number of at most 16 digits, not {text!r}")


def _size(size: int) -> str:
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"


def _state(part: "Part") -> str:
    if part.in_use:
        return "in use"
    return "at rest" if part.base else "empty" if not part.bytes else "unusable"


def _progress(items: Iterable[T], label: str, total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return iter(track(items, label, total=total, console=console, disable=not console.is_terminal))


@contextlib.contextmanager
def _explained(target: str) -> Iterator[None]:
    """An error of ours, or of the system, is one line and exit status 2; no traceback."""
    from cache.errors import CacheError, refusal

    try:
        yield
    except BrokenPipeError:
        raise  # `| head` has read enough; typer ends quietly
    except (CacheError, OSError) as error:
        said = refusal(target, error) if isinstance(error, OSError) else error
        typer.echo(f"hpkv cache: {said}", err=True)
        raise typer.Exit(2) from error
