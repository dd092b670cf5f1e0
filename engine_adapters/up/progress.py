"""What `hpkv up` shows while it works: one line a step, with the time it took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.status import Status

PLAIN_INTERVAL = 15.0
"""Seconds between two lines of one step where there is no terminal to redraw."""


def minutes(seconds: float) -> str:
    """Elapsed time as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@dataclass
class Step:
    """One thing under way. `detail` may be called as often as its caller likes."""

    console: Console
    title: str
    started: float
    status: Status | None
    shown: float

    def detail(self, text: str) -> None:
        """Tell how far the step is."""
        now = time.monotonic()
        if self.status is not None:
            self.status.update(f"{self.title}  [dim]{minutes(now - self.started)}  {text}[/dim]")
        elif now - self.shown >= PLAIN_INTERVAL:
            self.shown = now
            self.console.print(f"  ... {self.title}  {minutes(now - self.started)}  {text}", markup=False)


class Progress:
    """Steps on a terminal as a spinner that ends in a line; elsewhere as plain lines."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show `title` until the block ends; nothing more is said when it ends with an error."""
        started = time.monotonic()
        status = self.console.status(title) if self.console.is_terminal else None
        if status is not None:
            status.start()
        else:
            self.console.print(f"  {title} ...", markup=False)
        try:
            yield Step(self.console, title, started, status, started)
        finally:
            if status is not None:
                status.stop()
        self.console.print(f"[green]✓[/green] {title}  [dim]{minutes(time.monotonic() - started)}[/dim]")

    def say(self, text: str) -> None:
        """Print `text` as it is, so that it can be copied."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
