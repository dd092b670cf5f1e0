"""What one API key may have kept in the replicas' caches."""

from pydantic import Field

from gateway.settings.base import Section


class TenantSettings(Section):
    """Bounds for each key, so that one tenant can't fill what all share. Agents bound all pins together."""

    pins: int = Field(default=16, ge=0, description="pins at a time")
    prefetches: int = Field(default=8, ge=0, description="prefetches whose pages are kept at a time")
    tokens: int = Field(default=131_072, ge=0, description="tokens of pins, and of prefetches, at a time")
