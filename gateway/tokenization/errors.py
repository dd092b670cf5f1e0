"""What tokenization raises. Each message says what to do.

TokenizationError
├── TokenizerUnavailable   the model's tokenizer can't be loaded here
├── Overloaded             too much text waits to be encoded (the API answers 503)
├── NotEncodable           the tokenizer fails on a text
└── EngineError
    ├── EngineRefused      the engine answered with an HTTP status of 400 or more
    └── EngineUnreachable  the engine didn't answer
"""


class TokenizationError(Exception):
    """The root of this package's errors."""


class TokenizerUnavailable(TokenizationError):
    """The tokenizer of `source` can't be loaded, or is of a kind that can't be used here."""

    def __init__(self, source: str, why: str, remedy: str) -> None:
        super().__init__(f"no tokenizer for {source!r}: {why}. {remedy}")
        self.source = source


class Overloaded(TokenizationError):
    """Texts that wait to be encoded would delay a new one by more than is allowed."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(
            f"{wait_s:.1f} s of text waits to be encoded; send the request again later, "
            "or give the gateway more encoding threads"
        )
        self.retry_after_s = wait_s


class NotEncodable(TokenizationError):
    """The tokenizer fails on a text, which `why` says nothing of."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the tokenizer fails on a text: {why}")
        self.why = why


class EngineError(TokenizationError):
    """An engine didn't tell. An `EngineCall` translates its HTTP client's errors into two of these."""


class EngineRefused(EngineError):
    """The engine answered `path` with an HTTP status of 400 or more."""

    def __init__(self, path: str, status: int) -> None:
        super().__init__(f"the engine answered {path} with status {status}")
        self.status = status


class RouteNotServed(EngineError):
    """The engine doesn't serve `path`, or didn't a moment ago."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the engine doesn't serve {path}")


class EngineUnreachable(EngineError):
    """The engine gave no usable answer to `path`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the engine gave no usable answer to {path}: {why}")
