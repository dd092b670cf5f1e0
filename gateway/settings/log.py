"""What the gateway writes down."""

from typing import Literal

from pydantic import Field

from gateway.settings.base import Section


class LogSettings(Section):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"
    requests: bool = Field(default=True, description="one line a request")
