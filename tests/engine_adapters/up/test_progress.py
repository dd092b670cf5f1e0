import io

import pytest
from rich.console import Console

from engine_adapters.up import progress
from engine_adapters.up.progress import Progress, minutes


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def test_elapsed_time() -> None:
    assert [minutes(seconds) for seconds in (0, 59.9, 60, 605)] == ["0:00", "0:59", "1:00", "10:05"]


def test_plain_lines(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    with Progress(console).step("engine") as step:
        step.detail("[2/3] loading")
    assert lines(console) == ["  engine ...", "  ... engine  0:00  [2/3] loading", "✓ engine  0:00"]


def test_plain_lines_are_rare(console: Console) -> None:
    with Progress(console).step("engine") as step:
        step.detail("1")
        step.detail("2")
    assert len(lines(console)) == 2


def test_a_failed_step_is_not_ticked(console: Console) -> None:
    with pytest.raises(RuntimeError), Progress(console).step("engine"):
        raise RuntimeError
    assert "✓" not in "".join(lines(console))


def test_what_is_said_can_be_copied(console: Console) -> None:
    text = "x" * 300 + " [bold]"
    Progress(console).say(text)
    assert lines(console) == [text]
