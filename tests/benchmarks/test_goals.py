import pytest

from benchmarks.goals import Figure, GoalError, load_goals, parse_goal


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        ("≤ 1.2", 1.2, True),
        ("≤ 1.2", 1.21, False),
        ("≥ 600k", 600_000, True),
        ("≥ 0.9", 0.89, False),
        ("≤ 100 and ≤ `peer`", 80, True),
        ("≤ 100 and ≤ `peer`", 95, False),
        ("≤ 100 and ≤ `peer`", 101, False),
        ("≤ 1.5 + `peer`", 91.5, True),
        ("≤ 1.5 + `peer`", 91.6, False),
        ("≤ 1.5 + `a + b`", 12.5, False),
        ("≤ 1.5 + `a + b`", 8.5, True),
        ("≤ 1.2 * `peer`", 108, True),
        ("≤ 1.2 * `peer`", 109, False),
        ("≥ `never measured`", 1e9, False),
    ],
)
def test_a_goal_is_met_when_every_condition_holds(goal: str, value: float, met: bool) -> None:
    figures = {"ours": Figure(value, ""), "peer": Figure(90, ""), "a + b": Figure(7, "")}
    assert parse_goal("ours", goal).met(figures) is met


def test_a_figure_that_was_not_measured_meets_nothing() -> None:
    assert not parse_goal("ours", "≤ 1").met({})


def test_goal_and_figure_in_two_units_are_refused() -> None:
    with pytest.raises(GoalError, match="'ms' with 'µs'"):
        parse_goal("ours", "≤ 1.5 ms").met({"ours": Figure(3, "µs")})


@pytest.mark.parametrize("goal", ["< 3", "<= 3", "about 3", "≤ many", "≤ 3 +", "≤"])
def test_a_goal_that_means_nothing_is_refused(goal: str) -> None:
    with pytest.raises(GoalError, match="'ours'"):
        parse_goal("ours", goal)


def test_goals_are_loaded_in_the_order_of_their_file(tmp_path) -> None:
    (tmp_path / "x.toml").write_text(
        '[[goal]]\nfigure = "b"\ngoal = "≤ 1"\n[[goal]]\nfigure = "a"\ngoal = "≥ 2"\n', encoding="utf-8"
    )
    assert [(goal.figure, goal.text) for goal in load_goals("x", tmp_path)] == [("b", "≤ 1"), ("a", "≥ 2")]


@pytest.mark.parametrize(
    "text", ["[[goal]]\nfigure = 'a'\n", "[[goal", "", "[[goal]]\nfigure='a'\ngoal='≤ 1'\n" * 2]
)
def test_a_broken_goals_file_names_itself(tmp_path, text: str) -> None:
    (tmp_path / "x.toml").write_text(text, encoding="utf-8")
    with pytest.raises(GoalError, match=r"x\.toml"):
        load_goals("x", tmp_path)


def test_a_missing_goals_file_names_itself(tmp_path) -> None:
    with pytest.raises(GoalError, match=r"x\.toml"):
        load_goals("x", tmp_path)
