"""The goals of a benchmark: rows of `benchmarks/goals/NAME.toml`, copied from the row that set them.

    [[goal]]
    figure = "12,000-token prompt, keys + match"
    goal = "≤ 100 µs and ≤ `Dynamo's hash + match`"

A goal is one or more conditions joined by "and"; a condition is ≤ or ≥ and a sum of terms; a term is a number
with the figure's unit, or another figure in backticks, plain or times a number:
"≤ 1.5 ms + `encode of the new text`", "≤ 1.2 * `the same on one replica`". A row of several figures becomes
several entries.
"""

import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "goals"
COMPARISONS: dict[str, Callable[[float, float], bool]] = {"≤": operator.le, "≥": operator.ge}
TERM = re.compile(
    r"(?:(?P<factor>[\d.,]+) \* )?`(?P<figure>[^`]+)`|(?P<number>[\d.,]+[kM]?)(?: (?P<unit>[^\s+]+))?"
)
PLUS = re.compile(r" \+ (?=(?:[^`]*`[^`]*`)*[^`]*$)")  # outside backticks
SCALES = {"k": 1e3, "M": 1e6}


class GoalError(Exception):
    """A goals file that cannot be read, or a goal that its figures do not fit."""


class Figure(NamedTuple):
    """One measured value with its unit."""

    value: float
    unit: str


class Term(NamedTuple):
    """`factor` times the named figure, or `factor` in `unit` when no figure is named."""

    factor: float
    figure: str
    unit: str


class Condition(NamedTuple):
    """A comparison ("≤" or "≥") with a sum of terms."""

    comparison: str
    bound: tuple[Term, ...]


class Goal(NamedTuple):
    """One goal row: what is measured, the goal as written, and what it means."""

    figure: str
    text: str
    conditions: tuple[Condition, ...]

    def met(self, figures: Mapping[str, Figure]) -> bool:
        """Whether the figure satisfies every condition; what was not measured meets nothing."""
        named = {term.figure for condition in self.conditions for term in condition.bound if term.figure}
        if not {self.figure, *named} <= figures.keys():
            return False
        return all(
            COMPARISONS[condition.comparison](
                figures[self.figure].value, sum(self._amount(term, figures) for term in condition.bound)
            )
            for condition in self.conditions
        )

    def _amount(self, term: Term, figures: Mapping[str, Figure]) -> float:
        """The term's value in the figure's unit. Raises GoalError if the units differ."""
        value, unit = figures[term.figure] if term.figure else Figure(1.0, term.unit)
        if unit != figures[self.figure].unit:
            raise GoalError(
                f"goal {self.text!r} compares {unit!r} with {figures[self.figure].unit!r}, the unit of "
                f"{self.figure!r}: report both in one unit"
            )
        return term.factor * value


def load_goals(name: str, folder: Path = FOLDER) -> list[Goal]:
    """The goals of benchmark `name`, in the file's order. Raises GoalError before anything is measured."""
    path = folder / f"{name}.toml"
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["goal"]
        goals = [parse_goal(row["figure"], row["goal"]) for row in rows]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise GoalError(f"{path.name}: {error}; it needs [[goal]] tables with `figure` and `goal`") from error
    if len({goal.figure for goal in goals}) < len(goals):
        raise GoalError(f"{path.name}: a figure has two entries; join its conditions with 'and'")
    return goals


def parse_goal(figure: str, text: str) -> Goal:
    """The goal `text` on `figure`. Raises GoalError where the text is not of the form told above."""
    conditions = []
    for part in re.split(r" and (?=[≤≥])", text):
        comparison, _, bound = part.partition(" ")
        if comparison not in COMPARISONS:
            raise GoalError(f"goal {text!r} of {figure!r}: a condition starts with '≤ ' or '≥ '")
        terms = [TERM.fullmatch(term) for term in PLUS.split(bound)]
        if None in terms:
            raise GoalError(f"goal {text!r} of {figure!r}: {bound!r} is not a sum of numbers and `figures`")
        conditions.append(Condition(comparison, tuple(_term(term) for term in terms if term)))
    return Goal(figure, text, tuple(conditions))


def _term(found: re.Match[str]) -> Term:
    if found["figure"]:
        return Term(_number(found["factor"] or "1"), found["figure"], "")
    return Term(_number(found["number"]), "", found["unit"] or "")


def _number(text: str) -> float:
    return float(text.rstrip("kM").replace(",", "")) * SCALES.get(text[-1], 1.0)
