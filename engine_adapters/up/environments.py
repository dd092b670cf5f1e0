"""Engines' Python environments. One is whole when its stamp, written last, names what it was made from."""

import fcntl
import hashlib
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import engine_adapters

from .errors import EnvironmentFailed

PACKAGES = ("cache", "engine_adapters")
"""What of this project an engine imports."""

Detail = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """How one engine's environment is made.

    `requirements` is a pinned, hashed list, installed without following dependencies. `aliases` are
    distributions (name, version) under which the engine looks itself up, other than the installed one.
    `imports` must succeed in the finished environment; `hint` says what to do if they don't.
    `entry_points`, in the form of `entry_points.txt`, names plugins of ours. `starts` are modules of ours
    that each Python of the environment imports when it starts.
    """

    name: str
    requirements: Path
    aliases: tuple[tuple[str, str], ...]
    imports: tuple[str, ...]
    hint: str
    entry_points: str = ""
    starts: tuple[str, ...] = ()

    def digest(self) -> str:
        """Name all that is installed in it; what is ours is linked anew each time."""
        parts = [self.requirements.read_text(), repr(self.aliases), sys.version]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Environment:
    """A finished environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def script(self, name: str) -> Path:
        """Return the path of a command that it has installed."""
        return self.folder / "bin" / name


def project_root() -> Path:
    """Folder that holds this project's packages: a checkout, or the site-packages of an installed wheel."""
    return Path(engine_adapters.__file__).resolve().parent.parent


def is_whole(folder: Path, recipe: Recipe) -> bool:
    """Whether `folder` was made to its end, from this very recipe."""
    stamp = folder / ".made"
    return stamp.is_file() and stamp.read_text() == recipe.digest()


def ensure(recipe: Recipe, home: Path, log: Path, detail: Detail) -> Environment:
    """Make the environment under `home`/envs unless it is whole. Two makers at once: the second waits.

    Raises EnvironmentFailed, with the end of `log`; what is half made is made anew next time.
    """
    folder = home / "envs" / recipe.name
    with _only_maker(folder):
        if not is_whole(folder, recipe):
            _make(folder, recipe, log, detail)
        # Another checkout may have used it since: what differs is where our packages lie, and our plugins.
        link_project(site_packages_of(folder), project_root())
        add_plugins(site_packages_of(folder), recipe)
    return Environment(folder)


@contextmanager
def _only_maker(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, recipe: Recipe, log: Path, detail: Detail) -> None:
    environment = Environment(folder)
    (folder / ".made").unlink(missing_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    detail("creating")
    _run([sys.executable, "-m", "venv", "--clear", str(folder)], log, lambda line: None, recipe.hint)
    total = sum("==" in line for line in recipe.requirements.read_text().splitlines())
    pip = [
        str(environment.python),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--progress-bar=off",
    ]
    _run(
        [*pip, "--require-hashes", "--no-deps", "-r", str(recipe.requirements)],
        log,
        _pip(total, detail),
        recipe.hint,
    )
    site_packages = site_packages_of(folder)
    for name, version in recipe.aliases:
        add_distribution(site_packages, name, version)
    link_project(site_packages, project_root())
    add_plugins(site_packages, recipe)
    detail("trying its imports")
    check = f"import {', '.join((*PACKAGES, *recipe.imports))}"
    _run([str(environment.python), "-P", "-c", check], log, lambda line: None, recipe.hint)
    (folder / ".made").write_text(recipe.digest())


def _pip(total: int, detail: Detail) -> Callable[[str], None]:
    """Turn pip's lines into how many of `total` packages it has got."""
    collected = 0

    def heard(line: str) -> None:
        nonlocal collected
        if line.startswith(("Collecting ", "Processing ")):  # the latter for files
            collected += 1
            detail(f"{collected}/{total} {line.split()[1].rpartition('/')[2].partition('==')[0]}")
        elif line.startswith("Installing collected"):
            detail(f"unpacking {total} packages")

    return heard


def _run(command: list[str], log: Path, heard: Callable[[str], None], hint: str) -> None:
    with (
        log.open("a") as out,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            heard(line)
    if process.returncode:
        end = "\n".join(log.read_text().splitlines()[-15:])
        raise EnvironmentFailed(
            f"making an engine's environment failed (exit {process.returncode}):\n{end}\n"
            f"The whole log is {log}. {hint}Run the same command again once the cause is gone: it starts "
            "afresh."
        )


def site_packages_of(folder: Path) -> Path:
    """Where the environment `folder` (made by this same Python) keeps its packages."""
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder)}))


def add_distribution(site_packages: Path, name: str, version: str) -> None:
    """Register a distribution that has a name and a version and no files; again, it stays."""
    folder = site_packages / f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def add_plugins(site_packages: Path, recipe: Recipe) -> None:
    """Have our own modules found by the engine's plugin loader, and imported when Python starts."""
    if recipe.entry_points:
        add_distribution(site_packages, f"hpkv_{recipe.name}", "0")
        (site_packages / f"hpkv_{recipe.name}-0.dist-info/entry_points.txt").write_text(recipe.entry_points)
    if recipe.starts:
        # Read after hpkv.pth, by which our modules are found.
        lines = "".join(f"import {module}\n" for module in recipe.starts)
        (site_packages / "hpkv_start.pth").write_text(lines)


def link_project(site_packages: Path, root: Path) -> None:
    """Make this project's packages, which lie in `root`, importable from where they lie.

    A checkout goes onto the path as a whole, as an editable install would put it there: links to its folders
    from an environment inside it would lead build tools in circles. An installed wheel's neighbours must stay
    out, so that its packages are linked one by one.

    What is right already is left alone, for engines may be running. Raises EnvironmentFailed if an engine's
    dependency has brought a package of the same name.
    """
    checkout = (root / "pyproject.toml").is_file()
    path = site_packages / "hpkv.pth"
    if not checkout:
        path.unlink(missing_ok=True)
    elif not path.is_file() or path.read_text() != f"{root}\n":
        path.write_text(f"{root}\n")
    for package in PACKAGES:
        link = site_packages / package
        if link.exists() and not link.is_symlink():
            raise EnvironmentFailed(f"{link} is another project's package; it would hide this project's own")
        if checkout or (link.is_symlink() and link.readlink() != root / package):
            link.unlink(missing_ok=True)
        if not checkout and not link.is_symlink():
            link.symlink_to(root / package)
