"""An engine's place at the gateway: taken under a lease, kept up, and given back when the engine stops.

`POST /v1/replicas` says where the engine is and asks for a lease; the same again renews it, and
`DELETE /v1/replicas/NAME` ends it. Nothing that a gateway does, or doesn't, harms the engine.
"""

import contextlib
import http.client
import logging
import re
import threading
import urllib.parse
from typing import Any, Final

import msgspec

from .settings import GatewaySettings

logger = logging.getLogger(__name__)

LEASE_S: Final = 30.0
"""Asked for; a third of what is granted lies between two renewals."""
RETRY_S: Final = 1.0
"""After the first failure; then twice as long each time, up to a third of a lease."""
LONGEST_S: Final = 3600.0
"""However long a lease is granted, a gateway that has restarted is to hear of the replica some time."""
ANSWER_S: Final = 5.0
GOODBYE_S: Final = 2.0
_LIMIT = 1 << 20


class Replica(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an engine says of itself; an empty endpoint is one that it hasn't got."""

    url: str
    engine: str
    events: str = ""
    replay: str = ""
    agent: str = ""
    agent_key: str = ""
    """The agent's public key, if it lets in holders of keys alone."""
    ranks: int = 1


class _Asked(Replica, frozen=True, omit_defaults=True, kw_only=True):
    lease_s: float


class _Granted(msgspec.Struct, frozen=True):
    name: str
    lease_s: float


class _Failed(Exception):
    """The gateway could not be asked, or said no."""


def reachable(endpoint: str, url: str) -> str:
    """The address at which others find what is bound to all of a machine's; `url` names the machine."""
    host = re.sub(r":\d+$", "", urllib.parse.urlsplit(url).netloc)
    return re.sub(r"^tcp://(\*|0\.0\.0\.0|\[::\]):", f"tcp://{host}:", endpoint)


class Registration:
    """Keeps one replica registered, from its making to `close`, on a thread of its own.

    A gateway that is away is asked again until it is back; one that has restarted knows the replica again
    within a third of a lease.
    """

    def __init__(self, gateway: GatewaySettings, replica: Replica, lease_s: float = LEASE_S) -> None:
        self._gateway = gateway
        self._replica = replica
        self._lease_s = lease_s
        self._name = ""
        self._said: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpkv-register", daemon=True)
        self._thread.start()

    @property
    def of(self) -> tuple[GatewaySettings, Replica]:
        """Whose place it is, and where."""
        return self._gateway, self._replica

    def close(self) -> None:
        """Say goodbye, and wait `GOODBYE_S` for it at most. What isn't said in time, the lease's end says."""
        self._closing.set()
        self._thread.join(GOODBYE_S)

    def _run(self) -> None:
        longest = self._lease_s / 3
        first = retry = min(RETRY_S, longest)
        while True:
            try:
                pause, retry = self._register() / 3, first
            except _Failed as error:
                self._say(logging.WARNING, f"not registered at {self._gateway.url}: {error}")
                pause, retry = retry, min(2 * retry, longest)
            if self._closing.wait(pause):
                break
        if self._name:
            with contextlib.suppress(_Failed):
                self._ask("DELETE", f"/v1/replicas/{urllib.parse.quote(self._name, safe='')}")

    def _register(self) -> float:
        """Take or renew the lease; returns its seconds."""
        asked = _Asked(**msgspec.structs.asdict(self._replica), lease_s=self._lease_s)
        answer = self._ask("POST", "/v1/replicas", msgspec.json.encode(asked))
        try:
            granted = msgspec.json.decode(answer, type=_Granted)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _Failed(f"it answered something else than a lease ({error})") from error
        self._name = granted.name
        self._say(logging.INFO, f"registered at {self._gateway.url} as {granted.name}")
        return min(max(granted.lease_s, 0.1), LONGEST_S)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        # Not by a client that follows redirects or reads proxies from the environment: the key goes nowhere
        # but to the gateway.
        where = urllib.parse.urlsplit(self._gateway.url)
        kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
        headers = {"content-type": "application/json", **self._authorization()}
        try:
            connection = kind(where.hostname or "", where.port, timeout=ANSWER_S)
            with contextlib.closing(connection):
                connection.request(method, where.path + path, body, headers)
                answer = connection.getresponse()
                told = answer.read(_LIMIT)
        except (OSError, UnicodeError, http.client.HTTPException) as error:  # a host name that is none
            raise _Failed(f"no answer ({type(error).__name__}: {error})") from None
        if answer.status != 200:
            raise _Failed(f"it answered {answer.status}{_reason(told)}")
        return told

    def _authorization(self) -> dict[str, str]:
        file = self._gateway.admin_key_file
        if file is None:
            return {}
        try:
            key = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _Failed(f"{file} can't be read ({type(error).__name__})") from None
        if not key.isascii() or not key.isprintable() or not key:
            raise _Failed(f"{file} holds no key that can be sent")
        return {"authorization": f"Bearer {key}"}

    def _say(self, level: int, text: str) -> None:
        """Once, until there is something else to say."""
        if text != self._said:
            self._said = text
            logger.log(level, "%s", text)


def _reason(answer: bytes) -> str:
    """What an error envelope says, in one line."""
    try:
        told: Any = msgspec.json.decode(answer)
        message = str(told["error"]["message"])
    except (msgspec.DecodeError, TypeError, KeyError):
        return ""
    return f": {' '.join(message.split())[:300]}"
