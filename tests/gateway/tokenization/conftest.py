"""Encoding threads, and model folders of every family."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tokenization import EncodePool, ModelTokenizer
from gateway.tokenization.encoder import Encoder
from tests.gateway.tokenization import families

OpenModel = Callable[..., Any]


@pytest.fixture(autouse=True)
def steady_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short enough for the event loop is so on a busy machine, too."""
    monkeypatch.setattr(Encoder, "_measure", lambda encoder: 20e6)


@pytest.fixture
def pool() -> Iterator[EncodePool]:
    pool = EncodePool(workers=2, max_wait_s=5.0)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model folder for each family with the plain template, and `rich` with the one that shows all."""
    root: Path = tmp_path_factory.mktemp("models")
    made = {
        name: families.save(root / name, make())
        for name, make in {**families.SEGMENTED, **families.WHOLE}.items()
    }
    made["rich"] = families.save(root / "rich", families.SEGMENTED["prefix_space"](), families.RICH)
    return made


@pytest.fixture
def open_model(pool: EncodePool, folders: dict[str, str]) -> OpenModel:
    """Opens a family's model, or that in a folder."""

    async def opened(name: str, **options: Any) -> ModelTokenizer:
        return await ModelTokenizer.open(folders.get(name, name), pool=pool, **{"engine": "vllm", **options})

    return opened
