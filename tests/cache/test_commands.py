"""`hpkv cache` on folders: at rest, in use, damaged, not ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cache.commands import app
from cache.keys import Base
from cache.testing import BASE, PAGE_BYTES, SPACE, content, key, page
from cache.tiers.base import Write
from cache.tiers.ssd import Limits, Ssd
from cache.tiers.ssd.folder import physical
from cache.tiers.ssd.records import slot_bytes
from tests.cache.mounts import mounted

SLOT = slot_bytes(PAGE_BYTES)
OTHER = Base(weights="f", kv_dtype="b", kv_layout="l", attention_backend="a", page_tokens=16, engine="test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def filled(
    folder: Path, start: int, stop: int, tenant: int = 0, base: Base = BASE, cap: int = 4 << 20
) -> Ssd:
    store = Ssd(folder, base.fingerprint, PAGE_BYTES, Limits(cap=cap, free_floor=0))
    writes = [Write(page(n, tenant), [content(n)], n + 1) for n in range(start, stop)]
    store.write(base.namespace(), writes)
    return store


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["cache", *map(str, arguments)], input=stdin)


def slot_of(store: Ssd, number: int) -> int:
    (slot,) = store._book.find(SPACE, [key(number)])
    return slot


def test_stat_shows_each_part(folder: Path) -> None:
    filled(folder, 0, 5).close()
    living = filled(folder, 0, 7, base=OTHER)
    result = run("stat", folder)
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if "at rest" in line or "in use" in line]
    assert ["5" in lines[0], "at rest" in lines[0]] == [True, True]
    assert ["7" in lines[1], "in use" in lines[1]] == [True, True]
    living.close()


@pytest.mark.parametrize("columns", ["20", "40", "80"])
def test_stat_breaks_no_name(folder: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    filled(folder, 0, 5).close()
    (line,) = (line for line in run("stat", folder).output.splitlines() if "at rest" in line)
    assert BASE.fingerprint.hex() in line


def test_ls_lists_pages_of_a_tenant(folder: Path) -> None:
    filled(folder, 0, 3, tenant=0xAB).close()
    filled(folder, 3, 5).close()
    assert len(run("ls", folder).stdout.splitlines()) == 5
    lines = run("ls", folder, "--tenant", "ab").stdout.splitlines()
    assert sorted(line.split()[2] for line in lines) == sorted(key(n).hex() for n in range(3))
    assert len(run("ls", folder, "--limit", "2").stdout.splitlines()) == 2


def test_ls_ends_quietly_when_nobody_reads_on(folder: Path) -> None:
    filled(folder, 0, 3).close()
    command = [sys.executable, "-c", "from cache.commands import app; app()", "cache", "ls", str(folder)]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_verify_names_damaged_pages_and_changes_nothing(folder: Path) -> None:
    store = filled(folder, 0, 4)
    slot, pages = slot_of(store, 2), store._seat.path / "pages"
    store.close()
    assert run("verify", folder).exit_code == 0
    with pages.open("r+b") as file:
        file.seek(slot * SLOT + 5000)
        file.write(b"\0\0\0\0")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = run("verify", folder)
    assert result.exit_code == 1
    assert f"{key(2).hex()}: payload damaged" in result.output
    assert "1 of 4 pages are damaged" in result.output
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_looking_works_on_what_can_not_be_written(folder: Path, tmp_path: Path) -> None:
    filled(folder, 0, 4).close()
    with mounted(tmp_path / "m", "--bind", folder) as mount:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(mount)], check=True)
        assert "at rest" in run("stat", mount).output
        assert len(run("ls", mount).stdout.splitlines()) == 4
        assert run("verify", mount).output == "all 4 pages are whole\n"
        for command in (["gc"], ["gc", "--max-bytes", "0"], ["clear", "--yes"]):
            refused = run(command[0], mount, *command[1:])
            assert (refused.exit_code, "mount it writable" in refused.output) == (2, True)
    assert run("verify", folder).output == "all 4 pages are whole\n"


def test_a_folder_of_somebody_else(folder: Path, tmp_path: Path) -> None:
    filled(folder, 0, 1).close()
    for path in (folder, folder / "00"):
        path.chmod(0o755)
    code = (
        "import os, typer._adapters, typer.rich_utils, rich.progress, rich.table\n"
        "from typer.testing import CliRunner; from cache.commands import app\n"
        "def run(): return CliRunner().invoke(app, ['cache', 'verify', '.']).output\n"
        "run()\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "print(run())"
    )
    for path in (folder / "lock", folder / "00" / "lock", folder / "00" / "table"):
        path.chmod(0)
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    assert "Permission denied: give this user read and write access (lock)" in said
    assert "Traceback" not in said


def test_a_part_that_nobody_can_read_is_named_and_collected(folder: Path) -> None:
    for lost in (lambda part: (part / "table").write_text("junk"), lambda part: (part / "pages").unlink()):
        filled(folder, 0, 4).close()
        lost(folder / "00")
        assert "unusable" in run("stat", folder).output
        result = run("verify", folder)
        assert (result.exit_code, "part 00 has" in result.output) == (0, True)
        assert "there are no pages" in result.output
        assert run("ls", folder).output == ""
        assert run("gc", folder).output.endswith("0 B are\n")
        assert "empty" in run("stat", folder).output


def test_verify_works_beside_a_living_process(folder: Path) -> None:
    store = filled(folder, 0, 4)
    result = run("verify", folder)
    assert (result.exit_code, "all 4 pages are whole" in result.output) == (0, True)
    store.close()


def test_gc_trims_to_a_size_oldest_use_first(folder: Path) -> None:
    store = filled(folder, 0, 20)
    store.touch(SPACE, [key(0)], used=1000)
    store.close()
    assert run("gc", folder, "--max-bytes", str(12 * SLOT)).exit_code == 0
    again = filled(folder, 0, 0)
    left = [n for n, found in enumerate(again.find(SPACE, [key(n) for n in range(20)])) if found]
    assert left[0] == 0
    assert left[1:] == list(range(20 - len(left) + 1, 20))
    assert 5 < len(left) < 13
    again.close()


def test_gc_gives_back_idle_space_before_pages(folder: Path) -> None:
    filled(folder, 0, 5, cap=64 << 20).close()
    assert physical(folder / "00") > 20 * SLOT
    assert run("gc", folder, "--max-bytes", str(8 * SLOT)).output.startswith("0 pages removed")
    assert physical(folder / "00") <= 8 * SLOT
    assert run("verify", folder).output == "all 5 pages are whole\n"
    again = filled(folder, 5, 30)
    assert again.find(SPACE, [key(n) for n in range(30)]) == [True] * 30
    again.audit()
    again.close()
    assert run("verify", folder).output == "all 30 pages are whole\n"
    assert run("gc", folder, "--max-bytes", "1GiB").output.startswith("0 pages removed")
    assert run("gc", folder, "--max-bytes", "0").output.endswith("0 B are\n")


def test_gc_by_age(folder: Path) -> None:
    filled(folder, 0, 5).close()
    assert run("gc", folder, "--older-than", "1").stdout.startswith("0 pages removed")
    assert run("gc", folder, "--older-than", "0").stdout.startswith("5 pages removed")
    assert run("ls", folder).stdout == ""


def test_gc_leaves_living_processes_alone_and_says_so(folder: Path) -> None:
    store = filled(folder, 0, 5)
    result = run("gc", folder, "--max-bytes", "0")
    assert result.exit_code == 2
    assert "living processes write the rest" in result.output
    assert store.find(SPACE, [key(n) for n in range(5)]) == [True] * 5
    store.close()


def test_clear_asks_first(folder: Path) -> None:
    filled(folder, 0, 5).close()
    assert run("clear", folder, stdin="n\n").exit_code == 1
    assert len(run("ls", folder).stdout.splitlines()) == 5
    assert "5 pages removed" in run("clear", folder, stdin="y\n").output
    assert run("ls", folder).stdout == ""
    assert sum(path.stat().st_size for path in folder.rglob("pages")) == 0


def test_clear_one_tenant(folder: Path) -> None:
    filled(folder, 0, 3, tenant=7).close()
    store = filled(folder, 3, 5)
    busy = run("clear", folder, "--tenant", "7", "--yes")
    assert (busy.exit_code, "living processes" in busy.output) == (2, True)
    store.close()
    assert run("clear", folder, "--tenant", "7", "--yes").stdout == "3 pages removed\n"
    assert len(run("ls", folder).stdout.splitlines()) == 2
    again = filled(folder, 0, 0)
    assert again.find(SPACE, [key(n) for n in range(5)]) == [False] * 3 + [True] * 2
    again.close()


def test_clearing_a_tenant_leaves_no_bytes_of_pages_that_lost_their_entry(folder: Path) -> None:
    filled(folder, 0, 3, tenant=7).close()
    (table,), (pages,) = folder.rglob("table"), folder.rglob("pages")
    with table.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff")
    assert bytes(content(0)) in pages.read_bytes()
    assert run("clear", folder, "--tenant", "7", "--yes").stdout == "2 pages removed\n"
    assert not any(pages.read_bytes())


def test_living_processes_follow_a_clear(folder: Path) -> None:
    store = filled(folder, 0, 3)
    assert run("clear", folder, "--yes").stdout == "3 pages removed\n"
    store.tend()
    assert store.usage().pages == 0
    store.close()


@pytest.mark.parametrize("command", ["stat", "ls", "verify", "gc", "clear"])
def test_what_is_not_ours_is_refused_and_kept(tmp_path: Path, command: str) -> None:
    (tmp_path / "pages").write_text("precious")
    extra = ["--yes"] if command == "clear" else []
    for target, says in (
        (tmp_path, "isn't a cache folder"),
        (tmp_path / "no", "doesn't exist"),
        (tmp_path / "pages", "isn't a folder"),
        ("ftp://b", "names no kind of store"),
    ):
        result = run(command, target, *extra)
        assert result.exit_code == 2
        assert says in result.output
        assert "Traceback" not in result.output
    assert (tmp_path / "pages").read_text() == "precious"


def test_files_that_are_not_ours_inside_a_cache_folder_are_kept(folder: Path) -> None:
    filled(folder, 0, 3).close()
    (folder / "00" / "notes.txt").write_text("precious")
    (folder / "77").mkdir()
    (folder / "77" / "pages").write_text("hardly ours")
    (folder / "backup").mkdir()
    run("clear", folder, "--yes")
    run("gc", folder)
    assert (folder / "00" / "notes.txt").read_text() == "precious"
    assert (folder / "backup").is_dir()
    assert (folder / "77" / "pages").read_text() == "hardly ours"


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "--tenant", "zebra"),
        ("clear", "--yes", "--tenant", "-1"),
        ("ls", "--tenant", "1" * 17),
        ("ls", "--limit", "-1"),
        ("gc", "--max-bytes", "-1"),
        ("gc", "--max-bytes", "1G"),
        ("gc", "--older-than", "soon"),
    ],
)
def test_impossible_options_are_refused(folder: Path, arguments: tuple[str, ...]) -> None:
    filled(folder, 0, 1).close()
    result = run(arguments[0], folder, *arguments[1:])
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert "Invalid value" in result.output
    assert len(run("ls", folder).stdout.splitlines()) == 1
