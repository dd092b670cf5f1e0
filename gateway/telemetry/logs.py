"""Structured logs: one JSON object (or one readable line) a record, on standard error.

Fields come in by `extra`. Nothing here ever sees a prompt, an answer or a key: callers pass ids, names and
counts.
"""

import logging
import re
from typing import Any

import orjson

from gateway.settings import LogSettings

# What every record has; the rest came in by `extra`.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "color_message",
    "taskName",
}

# What would break a line or move a terminal's cursor: a client chose some of the values.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON, `time` in seconds since the epoch."""
        fields: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(fields, default=str).decode()


class TextFormatter(logging.Formatter):
    """One readable line a record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, with the extra fields as key=value at its end; a traceback comes behind it."""
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items())
        return _CONTROL.sub(_escaped, super().formatMessage(record) + extra)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def configure_logging(settings: LogSettings) -> None:
    """Send all loggers of this process through our formatter."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
