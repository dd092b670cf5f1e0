from pathlib import Path

import pytest
import zmq

from engine_adapters.agent.keys import read_all, read_key
from engine_adapters.errors import SettingsError


def test_lines_are_keys_and_comments(tmp_path: Path) -> None:
    first, second = zmq.curve_keypair()
    (tmp_path / "keys").write_bytes(b"# mine\n\n %b gateway one\n#%b\n%b\n#\n" % (first, first, second))
    assert read_all(tmp_path / "keys") == [first, second]


@pytest.mark.parametrize("line", [b"short", b"x" * 41, b"\xff" * 40, b"~" * 40, b"$" * 40])
def test_a_line_that_is_neither_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "keys").write_bytes(b"# one\n" + line + b"\n")
    with pytest.raises(SettingsError, match="line 2"):
        read_all(tmp_path / "keys")


def test_a_file_of_two_is_not_one_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\n".join(zmq.curve_keypair()))
    with pytest.raises(SettingsError, match="holds 2 keys"):
        read_key(tmp_path / "keys")
    with pytest.raises(SettingsError, match="No such file"):
        read_key(tmp_path / "none")
