import json
import re
from pathlib import Path

from benchmarks.eviction.trace import load

ROOT = Path(__file__).parents[3]


def test_the_trace_is_a_tree_of_prefixes() -> None:
    trace = load()
    assert (len(trace.requests), trace.blocks, trace.unique) == (12_031, 288_500, 182_790)
    before: dict[int, int] = {}
    for request in trace.requests:
        for parent, block in zip([-1, *request], request, strict=False):
            assert before.setdefault(block, parent) == parent


def test_the_documented_table_is_what_was_measured() -> None:
    figures = json.loads((ROOT / "benchmarks/results/eviction.json").read_text())["figures"]
    rows = re.findall(r"^\| ([\w ,-]+) \|((?: [\d.]+ \|){5})$", (ROOT / "docs/eviction.md").read_text(), re.M)
    told = {name: [float(cell) for cell in re.findall(r"[\d.]+", cells)] for name, cells in rows}
    for name in ("ours", "LRU by block", "S3-FIFO", "ARC", "optimum"):
        assert told[name] == [
            round(rate, 1) for figure, rate in figures.items() if figure.startswith(f"{name}, ")
        ]
