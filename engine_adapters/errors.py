"""What can go wrong on the way to an engine.

EngineError
├── EngineUnreachable    no connection: refused, no route, TLS refused
├── EngineExhausted      no file descriptor left here
├── EngineDisconnected   the connection broke after the request was sent
├── EngineTimeout        connecting, or the next byte, took longer than its limit
├── EngineAnswerInvalid  an answer that no engine of this kind should give
├── EventsInvalid        a message on the event stream that no engine of this kind should send
├── WireError            a frame of an engine's agent, or to it, that its version of the wire doesn't know
└── AgentRefused         an engine's agent understood a call, and won't or can't do it

And before it starts:

SettingsError            settings of an engine's inside, or flags for its start, that can't be used
"""

from typing import Literal

RefusalCode = Literal["version", "invalid", "unknown_lora", "too_large", "busy", "unsupported", "failed"]


class EngineError(Exception):
    """Base of all failures between us and an engine; the message names the engine's URL and the remedy."""


class EngineUnreachable(EngineError):
    """No connection could be made. The engine has not seen the request."""


class EngineExhausted(EngineError):
    """This process has no file descriptor left for a connection; it says nothing of the engine."""


class EngineDisconnected(EngineError):
    """The connection broke after the request was sent: the engine died, restarted, or dropped us."""


class EngineTimeout(EngineError):
    """The engine, or the way to it, stayed silent beyond the limit."""


class EngineAnswerInvalid(EngineError):
    """The engine answered a question of ours with something else than its contract says."""


class EventsInvalid(EngineError):
    """A message on an engine's event stream isn't in the form that this version of the engine documents."""


class WireError(EngineError):
    """A frame between an engine's agent and a client isn't in the form of its version."""


class AgentRefused(EngineError):
    """An engine's agent understood a call and didn't do it; `code` says in one word why."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SettingsError(Exception):
    """Settings of an engine's inside, or flags for its start, can't be used; the message says what to do."""
