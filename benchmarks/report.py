"""What every benchmark ends with: a table on the terminal, and `benchmarks/results/NAME.json`.

report = Report("main")
report.add("CPU a request", 61.0, "µs", spread=(58.0, 66.0))
sys.exit(report.finish())
"""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.goals import FOLDER as GOALS
from benchmarks.goals import Figure, Goal, load_goals
from benchmarks.machine import machine_facts
from benchmarks.servers import HOME

RESULTS = Path(__file__).parent / "results"
PARTS = HOME / "bench-results"
"""A part of a benchmark's figures is no result of it: it is kept here."""


class Report:
    """The figures of one benchmark run, held against the goals of `benchmarks/goals/NAME.toml`."""

    def __init__(
        self, name: str, *, partial: bool = False, goals: Path = GOALS, results: Path | None = None
    ) -> None:
        """A `partial` run was asked for some of the figures: it says nothing of the others' goals."""
        self.name = name
        self._partial = partial
        results = results or (PARTS if partial else RESULTS)
        self._goals = load_goals(name, goals)
        self._path = results / f"{name}.json"
        self._figures: dict[str, Figure] = {}
        self._spreads: dict[str, tuple[float, float]] = {}
        self._notes: list[str] = []

    def add(
        self, figure: str, value: float, unit: str = "", spread: tuple[float, float] | None = None
    ) -> None:
        """Record a figure under a name of its own; `spread` is the interval of its repeats, in its unit."""
        if figure in self._figures:
            raise ValueError(f"figure {figure!r} was added twice")
        self._figures[figure] = Figure(value, unit)
        if spread is not None:
            self._spreads[figure] = spread

    def note(self, text: str) -> None:
        """Record what the reader of the figures must know: a peer that is missing, what bounds a figure."""
        self._notes.append(text)

    def finish(self, console: Console | None = None) -> int:
        """Print the table and write the result.

        Returns the exit status: 0 if all that has a goal, and was asked for, could be measured, met or not;
        else 1.
        """
        met = {goal: goal.met(self._figures) for goal in self._goals}
        self._print(console or _wide_console(), met)
        self._write(met)
        return 0 if self._partial or all(goal.figure in self._figures for goal in self._goals) else 1

    def _print(self, console: Console, met: dict[Goal, bool]) -> None:
        table = Table(title=f"bench-{self.name}", title_justify="left")
        for column in ("figure", "value", "spread", "goal", ""):
            table.add_column(column, justify="right" if column in ("value", "spread") else "left")
        goals = {goal.figure: goal for goal in self._goals}
        for name, figure in self._figures.items():
            goal = goals.pop(name, None)
            low_high = self._spreads.get(name)
            table.add_row(
                name,
                f"{_number(figure.value)} {figure.unit}".rstrip(),
                f"{_number(low_high[0])} to {_number(low_high[1])}" if low_high else "",
                goal.text if goal else "",
                "" if goal is None else "[green]met[/]" if met[goal] else "[red]NOT MET[/]",
            )
        for goal in () if self._partial else goals.values():
            table.add_row(goal.figure, "not measured", "", goal.text, "[red]NOT MET[/]")
        console.print(table)
        for note in self._notes:
            console.print(f"- {note}", markup=False, highlight=False)

    def _write(self, met: dict[Goal, bool]) -> None:
        values = {name: figure.value for name, figure in self._figures.items()}
        result = {
            "name": self.name,
            "machine": machine_facts(),
            "figures": values,
            "units": {name: figure.unit for name, figure in self._figures.items()},
            "spreads": self._spreads,
            "goals": [
                {"figure": goal.figure, "value": values.get(goal.figure), "goal": goal.text, "met": met[goal]}
                for goal in self._goals
            ],
            "notes": self._notes,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _wide_console() -> Console:
    """A log has no width of its own; figures' names should not be folded there."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
