"""The gateway's refusals: each knows its HTTP status and its place in OpenAI's error envelope.

GatewayError
├── InvalidRequest      400  the request can't be understood; `param` names the field
├── Unauthorized        401  no key, or one we don't know
├── Forbidden           403  a key that may not do this
├── NotFound            404  no such path or object
├── ResponseNotFound    404  a stored response that nobody knows, or somebody else's
├── ModelNotFound       404  no replica serves this model
├── MethodNotAllowed    405
├── RequestTooSlow      408  head or body didn't arrive in time
├── Conflict            409  it is somebody else's already
├── BodyTooLarge        413  more bytes or more JSON values than the limits
├── RateLimited         429  the key has had its share for now
├── HeadTooLarge        431  longer, or more headers, than the limits
├── Internal            500  our fault; the log has more under the request's id
├── NoAgent             501  no replica of the model has an agent that could do it
├── ReplicaFailed       502  the replica broke, and there was no other
├── Overloaded          503  nobody can take the request now
└── ReplicaTimeout      504  the replica stayed silent

AnswerBroken is none of them: it ends an answer that has begun, for which it is too late to refuse.
"""

from typing import Any

import orjson


class GatewayError(Exception):
    """Base of all refusals.

    Args:
        message: what is wrong and what to do about it; it reaches the client.
        param: the request's field at fault.
        code: OpenAI's machine-readable code; None takes the class's.
        headers: sent with the answer.
    """

    status: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        self.headers = headers

    def envelope(self) -> bytes:
        """The answer's body."""
        return envelope(self.message, self.type, self.param, self.code)

    def answer_headers(self) -> list[tuple[bytes, bytes]]:
        """The answer's headers, but for its length."""
        return [(b"content-type", b"application/json"), *self.headers]


def envelope(message: str, type: str, param: str | None, code: str | None) -> bytes:
    """OpenAI's error envelope as JSON; `code` is a string or null whatever the status."""
    error: dict[str, Any] = {"message": message, "type": type, "param": param, "code": code}
    return orjson.dumps({"error": error})


class InvalidRequest(GatewayError):
    """400: the request can't be understood."""

    status = 400
    type = "invalid_request_error"


class Unauthorized(GatewayError):
    """401: no key, or one we don't know."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(GatewayError):
    """403: a key that may not do this."""

    status = 403
    type = "invalid_request_error"
    code = "insufficient_permissions"


class NotFound(GatewayError):
    """404: no such path or object."""

    status = 404
    type = "invalid_request_error"


class ResponseNotFound(NotFound):
    """404: a stored response that nobody here knows, or that isn't the asker's."""

    def __init__(self, response: str, *, param: str | None = None) -> None:
        super().__init__(
            f"Response '{response}' is not known here: it is too old, its replica is gone, "
            "or it was stored through another gateway.",
            param=param,
        )


class ModelNotFound(NotFound):
    """404: no replica serves this model."""

    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    """405: the path exists, the method doesn't."""

    status = 405
    type = "invalid_request_error"


class RequestTooSlow(GatewayError):
    """408: the request didn't arrive in time; the rest of it is not waited for.

    Args:
        part: what is missing: "headers" or "body".
        limit: the setting that says how long they may take, without its section.
    """

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"

    def __init__(self, part: str, limit: str, seconds: float) -> None:
        super().__init__(
            f"The request's {part} did not arrive within {seconds:g} s (limits.{limit}).",
            headers=((b"connection", b"close"),),
        )


class Conflict(GatewayError):
    """409: what is asked for is somebody else's already."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class BodyTooLarge(GatewayError):
    """413: more than `limits.body_bytes`, `json_fields` or `json_values` allow."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class RateLimited(GatewayError):
    """429: the key has had its share for now.

    Args:
        retry_after_s: until some of it is free again.
    """

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message, headers=((b"retry-after", b"%d" % retry_after_s),))


class HeadTooLarge(GatewayError):
    """431: the request line and headers are longer, or more, than the limits."""

    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class Internal(GatewayError):
    """500: our fault."""

    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("Internal error; the gateway's log tells more under this request's id.")


class NoAgent(GatewayError):
    """501: no replica of the model has an agent that could do it."""

    status = 501
    code = "no_agent"


class ReplicaFailed(GatewayError):
    """502: the replica broke before its answer's first byte, and no other could take over."""

    status = 502
    code = "replica_failed"


class Overloaded(GatewayError):
    """503: nobody can take the request now; clients may try again.

    Args:
        status: of a replica's own answer to this effect, 502 or 504, which is passed on.
        retry_after: when to try again, as the header of this name has it: seconds or a date.
    """

    status = 503
    type = "server_error"
    code = "server_is_overloaded"

    def __init__(
        self, message: str, *, status: int = 503, code: str | None = None, retry_after: bytes = b"1"
    ) -> None:
        super().__init__(message, code=code, headers=((b"retry-after", retry_after),))
        self.status = status


class ReplicaTimeout(GatewayError):
    """504: the replica sent nothing within `timeouts.first_chunk_s`."""

    status = 504
    type = "server_error"
    code = "replica_timeout"


class AnswerBroken(Exception):
    """A replica broke in the middle of a document: only cutting the connection tells the client."""
