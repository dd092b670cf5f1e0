import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine_adapters.up import environments
from engine_adapters.up.environments import Environment, Recipe, ensure, is_whole
from engine_adapters.up.errors import EnvironmentFailed


def ignore(text: str) -> None:
    """No progress to show."""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return tiny(tmp_path)


def tiny(folder: Path) -> Recipe:
    """An environment without packages of its own, quickly made."""
    requirements = folder / "requirements.txt"
    requirements.write_text("")
    return Recipe(
        "tiny",
        requirements,
        (("alias", "1.2+cpu"),),
        ("json",),
        "Look here. ",
        entry_points="[group]\nours = cache.prefix:seed\n",
        starts=("this",),
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@dataclass
class Made:
    """An environment that was made once, where an interrupted one lay."""

    recipe: Recipe
    home: Path
    environment: Environment


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    recipe, home = tiny(folder), folder / "home"
    leftover = home / "envs/tiny/leftover"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    return Made(recipe, home, ensure(recipe, home, home / "log", ignore))


def test_an_interrupted_one_is_made_anew_and_a_whole_one_only_once(made: Made) -> None:
    assert is_whole(made.environment.folder, made.recipe)
    leftover = made.home / "envs/tiny/leftover"
    assert not leftover.exists()
    leftover.touch()
    ensure(made.recipe, made.home, made.home / "log", ignore)
    assert leftover.exists()
    leftover.unlink()
    assert imported(made.environment) == ("1.2+cpu", environments.project_root())
    assert plugins(made.environment) == "The cache.prefix:seed"


def test_a_failure_shows_the_log_and_the_hint_and_leaves_no_stamp(
    recipe: Recipe, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no space left; exit 7\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(EnvironmentFailed, match=r"(?s)exit 7.*no space left.*Look here\."):
        ensure(recipe, home, home / "log", ignore)
    assert not is_whole(home / "envs/tiny", recipe)


def imported(environment: Environment) -> tuple[str, Path]:
    """The alias's version and the folder of `cache`, as the environment's Python sees them."""
    code = "import cache, importlib.metadata as m; print(m.version('alias'), cache.__file__)"
    told = subprocess.run([environment.python, "-P", "-c", code], capture_output=True, text=True, check=True)
    version, file = told.stdout.split()[-2:]
    return version, Path(file).resolve().parent.parent


def plugins(environment: Environment) -> str:
    """The first word of what is printed at its Python's start, and the plugin that it finds."""
    code = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='group')][0])"
    told = subprocess.run([environment.python, "-P", "-c", code], capture_output=True, text=True, check=True)
    return f"{told.stdout.split()[0]} {told.stdout.split()[-1]}"


def test_a_changed_list_is_another_environment(recipe: Recipe, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / ".made").write_text(recipe.digest())
    assert is_whole(folder, recipe)
    recipe.requirements.write_text("other==1\n")
    assert not is_whole(folder, recipe)


def test_an_unstamped_folder_is_not_whole(recipe: Recipe, tmp_path: Path) -> None:
    assert not is_whole(tmp_path, recipe)


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


def test_of_a_checkout_the_environment_holds_no_links(site_packages: Path) -> None:
    environments.link_project(site_packages, environments.project_root())
    assert [file.name for file in site_packages.iterdir()] == ["hpkv.pth"]


def test_of_an_installed_wheel_only_its_own_packages_are_seen(site_packages: Path, tmp_path: Path) -> None:
    for name in ("cache", "engine_adapters", "pydantic"):
        (tmp_path / name).mkdir()
    environments.link_project(site_packages, tmp_path)
    assert {file.name: file.resolve().parent for file in site_packages.iterdir()} == {
        "cache": tmp_path,
        "engine_adapters": tmp_path,
    }


def test_another_checkout_or_wheel_takes_over_the_links(site_packages: Path, tmp_path: Path) -> None:
    checkout, wheel = tmp_path / "checkout", tmp_path / "wheel"
    for root in (checkout, wheel):
        (root / "cache").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    environments.link_project(site_packages, environments.project_root())
    environments.link_project(site_packages, checkout)
    assert (site_packages / "hpkv.pth").read_text() == f"{checkout}\n"
    environments.link_project(site_packages, wheel)
    assert not (site_packages / "hpkv.pth").exists()
    assert (site_packages / "cache").resolve() == wheel / "cache"
    environments.link_project(site_packages, checkout)
    assert [file.name for file in site_packages.iterdir()] == ["hpkv.pth"]


def test_what_is_linked_right_is_left_alone(site_packages: Path, tmp_path: Path) -> None:
    for root in (environments.project_root(), tmp_path):
        environments.link_project(site_packages, root)
        before = {file.name: file.lstat().st_mtime_ns for file in site_packages.iterdir()}
        environments.link_project(site_packages, root)
        assert {file.name: file.lstat().st_mtime_ns for file in site_packages.iterdir()} == before


def test_the_same_environment_serves_all_checkouts(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = made.environment.folder / "kept"
    kept.touch()
    (tmp_path / "pyproject.toml").touch()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(environments, "project_root", lambda: tmp_path)
        ensure(made.recipe, made.home, made.home / "log", ignore)
    linked = environments.site_packages_of(made.environment.folder) / "hpkv.pth"
    assert kept.exists()
    assert linked.read_text() == f"{tmp_path}\n"
    ensure(made.recipe, made.home, made.home / "log", ignore)
    assert linked.read_text() == f"{environments.project_root()}\n"


def test_a_package_of_our_name_is_refused(site_packages: Path) -> None:
    (site_packages / "cache").mkdir()
    with pytest.raises(EnvironmentFailed, match="hide this project's own"):
        environments.link_project(site_packages, environments.project_root())
