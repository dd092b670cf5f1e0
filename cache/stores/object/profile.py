"""AWS credentials from a profile of the shared credentials file."""

import configparser
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cache.errors import SettingsError

_AGAIN = timedelta(minutes=5)
"""The file is read again so often: keys are rotated."""


class Profile:
    """Called by the client when it needs credentials."""

    def __init__(self, name: str) -> None:
        """Read them once, so that a missing one shows now. Raises SettingsError, without any value."""
        self._name = name
        self._path = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
        self()

    def __call__(self) -> dict[str, Any]:
        """The credentials, and until when not to ask again."""
        file = configparser.ConfigParser(interpolation=None)
        try:
            file.read_string(self._path.read_text())
            section = file[self._name]
            found = {
                "access_key_id": section["aws_access_key_id"],
                "secret_access_key": section["aws_secret_access_key"],
                "token": section.get("aws_session_token"),
            }
        except OSError as error:
            raise SettingsError(f"{self._path} can't be read: {error.strerror}") from None
        except (configparser.Error, KeyError):
            raise SettingsError(
                f"{self._path} has no profile {self._name!r} with aws_access_key_id and aws_secret_access_key"
            ) from None
        return {**found, "expires_at": datetime.now(UTC) + _AGAIN}
