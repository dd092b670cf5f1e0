"""What all sections of the settings share: their base, and the checks that more than one of them makes."""

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class SettingsError(Exception):
    """The settings can't be used; the message names each setting at fault and what to write instead."""


class Section(BaseModel):
    """Part of the settings: an unknown key is an error, and nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def read_text(file: Path) -> str:
    """The file's text.

    Raises:
        ValueError: it can't be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text") from None


def sendable(key: str) -> str:
    """The key, if a header can carry it.

    Raises:
        ValueError: it can't; the message doesn't show it.
    """
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ValueError("a key is one word of printable ASCII: no space, line break or accented letter")
    return key
