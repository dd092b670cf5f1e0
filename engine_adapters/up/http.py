"""The few questions that a starting fleet asks over HTTP, with the standard library alone."""

import json
import urllib.error
import urllib.request

from .errors import EngineUnreachable

TIMEOUT = 5.0
# A proxy meant for the world outside would only get in the way of loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with success."""
    try:
        with _opener.open(url, timeout=TIMEOUT):
            return True
    except OSError:
        return False


def served_model(url: str) -> str:
    """Return the name of the first model of the engine at `url`. Raises EngineUnreachable."""
    try:
        with _opener.open(f"{url.rstrip('/')}/v1/models", timeout=TIMEOUT) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise EngineUnreachable(
            f"{url} doesn't list its models as an OpenAI-compatible engine does ({error}); "
            "start it, or correct --engines"
        ) from error
