"""Where clients reach the gateway, what they may ask of it, and how it leaves."""

import ipaddress
import ssl
from pathlib import Path
from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from gateway.settings.base import Section


class Listen(Section):
    """Where clients reach the gateway. Beyond loopback it asks for API keys."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    tls_cert: Path | None = Field(default=None, description="PEM certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM private key")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: set both or neither")
        if self.tls_cert is not None:
            try:  # the empty password keeps OpenSSL from asking for one at the terminal
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, "")
            except OSError as error:
                raise ValueError(
                    f"tls_cert {self.tls_cert} with tls_key {self.tls_key}: {error}; "
                    "give a PEM chain and its private key, not encrypted"
                ) from error
        return self

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class LimitSettings(Section):
    """What one request may ask, and how long it may take to arrive."""

    header_bytes: int = Field(default=64 << 10, ge=1024, description="request line and headers together")
    headers: PositiveInt = Field(default=128, description="number of headers")
    header_s: PositiveFloat = Field(
        default=10.0, description="from a request's first byte to its last header"
    )
    body_bytes: PositiveInt = 64 << 20
    body_s: PositiveFloat = Field(default=120.0, description="from the last header to the body's last byte")
    json_fields: PositiveInt = Field(
        default=50_000, description="arrays, objects and named fields of a body, at all depths"
    )
    json_values: PositiveInt = Field(
        default=500_000, description="values of a body, array elements such as token ids included"
    )


class ShutdownSettings(Section):
    """What SIGTERM does: `/readyz` turns 503 at once, new requests are taken for `notice_s` more,
    then open answers may finish within `grace_s`."""

    notice_s: float = Field(default=0.0, ge=0)
    grace_s: float = Field(default=120.0, ge=0)
