import io
import json
import platform
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import Report


@pytest.fixture
def report(tmp_path: Path) -> Report:
    (tmp_path / "x.toml").write_text(
        '[[goal]]\nfigure = "fast"\ngoal = "≤ 2 µs"\n[[goal]]\nfigure = "slow"\ngoal = "≤ 2 µs"\n',
        encoding="utf-8",
    )
    return Report("x", goals=tmp_path, results=tmp_path / "results")


def finish(report: Report) -> tuple[int, str]:
    out = io.StringIO()
    status = report.finish(Console(file=out, width=120))
    return status, out.getvalue()


def test_a_goal_not_met_is_shown_and_still_exits_0(report: Report, tmp_path: Path) -> None:
    report.add("fast", 1.5, "µs", spread=(1.4, 1.6))
    report.add("slow", 1234.5, "µs")
    report.add("other", 3.0)
    report.note("peer does not install")
    status, text = finish(report)
    assert status == 0
    line = {
        name: next(row for row in text.splitlines() if f" {name} " in row)
        for name in ("fast", "slow", "other")
    }
    assert "1.4 to 1.6" in line["fast"]
    assert "met" in line["fast"]
    assert "NOT MET" not in line["fast"]
    assert "1,234 µs" in line["slow"]
    assert "NOT MET" in line["slow"]
    assert "met" not in line["other"].lower()
    assert "peer does not install" in text
    result = json.loads((tmp_path / "results" / "x.json").read_text(encoding="utf-8"))
    assert result["name"] == "x"
    assert result["figures"] == {"fast": 1.5, "slow": 1234.5, "other": 3.0}
    assert result["goals"] == [
        {"figure": "fast", "value": 1.5, "goal": "≤ 2 µs", "met": True},
        {"figure": "slow", "value": 1234.5, "goal": "≤ 2 µs", "met": False},
    ]
    assert result["spreads"] == {"fast": [1.4, 1.6]}
    assert result["notes"] == ["peer does not install"]


def test_a_goal_without_its_figure_is_not_met_and_exits_1(report: Report, tmp_path: Path) -> None:
    report.add("fast", 1.5, "µs")
    status, text = finish(report)
    assert status == 1
    assert "not measured" in text
    goals = json.loads((tmp_path / "results" / "x.json").read_text(encoding="utf-8"))["goals"]
    assert goals[1] == {"figure": "slow", "value": None, "goal": "≤ 2 µs", "met": False}


def test_a_figure_is_added_once(report: Report) -> None:
    report.add("fast", 1.0)
    with pytest.raises(ValueError, match="'fast' was added twice"):
        report.add("fast", 1.0)


def test_the_result_tells_the_machine_but_not_its_name(report: Report, tmp_path: Path) -> None:
    finish(report)
    text = (tmp_path / "results" / "x.json").read_text(encoding="utf-8")
    machine = json.loads(text)["machine"]
    assert machine["python"] == platform.python_version()
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert platform.node() not in text
    assert str(tmp_path) not in text


def test_a_part_is_kept_elsewhere_and_says_nothing_of_the_rest(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.report.PARTS", tmp_path / "parts")
    monkeypatch.setattr("benchmarks.report.RESULTS", tmp_path / "results")
    part = Report("x", partial=True, goals=tmp_path)
    part.add("fast", 1.5, "µs")
    status, text = finish(part)
    assert status == 0
    assert "slow" not in text
    assert (tmp_path / "parts" / "x.json").exists()
    assert not (tmp_path / "results").exists()
