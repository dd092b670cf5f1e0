"""The rules between the packages that a list must keep."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_gateway_is_forbidden_every_module_but_prefix() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["name"].startswith("of cache, the gateway sees")]
    top = {path.stem for path in (ROOT / "cache").iterdir() if path.suffix == ".py" or path.is_dir()}
    wanted = {f"cache.{name}" for name in top - {"__init__", "__pycache__", "prefix"}}
    assert set(contract["forbidden_modules"]) == wanted
