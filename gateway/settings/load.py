"""Reading the settings, and saying what is wrong with them."""

import difflib
import os
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError
from pydantic_settings.exceptions import SettingsError as SourceError

from gateway.settings.base import SettingsError
from gateway.settings.model import Settings


def load_settings(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read and check all settings.

    Args:
        file: YAML; None for none.
        flags: nested as the settings are, e.g. {"listen": {"port": 8000}}.
        environ: looked through for names that no setting has; values are read from the process's own.

    Raises:
        SettingsError
    """
    if file is not None and not file.is_file():
        raise SettingsError(f"{file} is not a file; write one, or leave --config out to use the defaults")
    _check_environment(environ)
    try:
        return Settings(**{**(flags or {}), "_file": _read_file(file) if file is not None else None})
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(dict(e)) for e in error.errors())) from error
    except SourceError as error:
        raise SettingsError(f"environment: {error}; lists and sections are written as JSON") from error


class _Loader(yaml.SafeLoader):
    """Safe YAML, in which a key is a string and stands once: the last of two would win unseen."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(problem="a key must be a string", problem_mark=key.start_mark)
            if key.value in seen:
                problem = f"{key.value} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:  # from a stream, YAML's errors don't quote the file, which has keys
            values = yaml.load(stream, _Loader)
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: write sections with settings, such as `listen: {{port: 8000}}`")
    return values


_ENGINES = "cache"
"""The section of variables that engines read, from the same environment perhaps."""


def _check_environment(environ: Mapping[str, str]) -> None:
    # pydantic-settings drops what it doesn't know; a misspelt variable would silently keep the default.
    variables = _variables()
    for name in environ:
        key = name.removeprefix("HPKV_").lower()
        section, nested, _ = key.partition("__")
        if not name.startswith("HPKV_") or section in Settings.model_fields or section == _ENGINES:
            continue
        if nested:
            raise SettingsError(f"{name}: no such section{_nearest(section, Settings.model_fields)}")
        # Other commands have variables of their own, so only what comes close to one of ours is a mistake.
        close = difflib.get_close_matches(key, variables, n=1, cutoff=0.85)
        if close:
            raise SettingsError(f"{name}: no such setting; did you mean HPKV_{close[0].upper()}?")


def _variables() -> list[str]:
    names = list(Settings.model_fields)
    for section, field in Settings.model_fields.items():
        keys: Iterable[str] = getattr(field.annotation, "model_fields", ())
        names += [f"{section}__{key}" for key in keys]
    return names


def _explain(error: dict[str, Any]) -> str:
    path = [str(part) for part in error["loc"]]
    where = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"{where}: no such setting{_nearest(path[-1], _keys_beside(path))}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _keys_beside(path: list[str]) -> Iterable[str]:
    kind: Any = Settings
    for part in path[:-1]:
        fields = getattr(kind, "model_fields", None)
        kind = fields[part].annotation if fields is not None else get_args(kind)[-1]  # list[X], dict[str, X]
    return list(kind.model_fields)


def _nearest(key: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"{meant} (known: {', '.join(known)})"
