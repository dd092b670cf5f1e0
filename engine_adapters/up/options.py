"""What `hpkv up` is asked for, checked before anything heavy starts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine_adapters.settings import Tiers

from . import hub, small_model
from .errors import ModelUnusable, UpError

MOST_REPLICAS = 26
"""Replicas are named by letters."""

ENGINES = {"vllm": ("vllm",), "sglang": ("sglang",), "mixed": ("vllm", "sglang")}
"""What `--engine` may be: the kinds of replicas, by turns."""

SMALL_MODEL_BYTES = 270 << 20


@dataclass(frozen=True)
class Options:
    """The flags of `hpkv up`.

    `home` keeps environments and models; `state` is this fleet's own folder. An empty `model` stands for the
    small one. `engine` is of ENGINES. With `engines` (URLs) nothing but the gateway is started. `engine_port`
    is the first replica's. `tiers` are each replica's own, but for the folders, which they share.
    """

    home: Path
    state: Path
    model: str = ""
    engine: str = "vllm"
    engines: tuple[str, ...] = ()
    port: int = 8000
    engine_port: int = 8101
    replicas: int = 2
    tiers: Tiers = field(default_factory=Tiers)
    engine_args: tuple[str, ...] = ()
    start_timeout: float = 600.0

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise UpError(f"--replicas {self.replicas}: from 1 to {MOST_REPLICAS} are possible")
        if self.engine not in ENGINES:
            raise UpError(f"--engine {self.engine}: choose from {', '.join(ENGINES)}")
        if self.port in self.engine_ports:
            raise UpError(f"--port {self.port} is also a replica's; set --engine-port to other ports")
        for url in self.engines:
            if not re.match(r"https?://[^/\s]+", url):
                raise UpError(
                    f"--engines (ENGINES=): {url} is not the URL of an engine: write it as in "
                    "http://127.0.0.1:8101, whatever its kind, which is found by asking it"
                )

    @property
    def kinds(self) -> list[str]:
        """The engine of each replica to start."""
        turns = ENGINES[self.engine]
        return [] if self.engines else [turns[i % len(turns)] for i in range(self.replicas)]

    @property
    def engine_ports(self) -> Sequence[int]:
        """The ports of the replicas to start."""
        return () if self.engines else range(self.engine_port, self.engine_port + self.replicas)


@dataclass(frozen=True)
class Model:
    """A model to serve: a folder or a hub's name, its public name, its bytes (0 where nobody knows)."""

    source: str
    name: str
    weights: int


def find_model(options: Options) -> Model:
    """Say which model is meant. Raises ModelUnusable if it can be none."""
    if not options.model:
        folder = options.home / "models" / small_model.NAME
        return Model(str(folder), small_model.NAME, SMALL_MODEL_BYTES)
    folder = Path(options.model).expanduser()
    if folder.is_dir():
        return _in_folder(folder.resolve())
    if re.fullmatch(r"[\w.-]+/[\w.-]+", options.model):
        hub.require(options.model)
        return Model(options.model, options.model, 0)
    raise ModelUnusable(f"--model {options.model}: no such folder, and not a hub's name (OWNER/NAME) either")


def _in_folder(folder: Path) -> Model:
    if not (folder / "config.json").is_file():
        raise ModelUnusable(
            f"--model {folder} has no config.json; name the folder that holds the model's config.json, "
            "tokenizer and weights"
        )
    weights = sum(file.stat().st_size for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind))
    return Model(str(folder), folder.name, weights)
