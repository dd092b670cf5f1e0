from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cache.build import Rig, rig

MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    """Hierarchies on one folder, closed and audited in the end."""
    made: list[Rig] = []

    def make(**settings: Any) -> Rig:
        made.append(rig(tmp_path / "cache", **settings))
        return made[-1]

    yield make
    for one in made:
        one.disk.works.set()
        one.tiers.close()
        one.tiers.audit()
        one.ssd.audit()
