"""What the gateway has brought up from lower tiers: ahead of requests under way, and for tenants who ask."""

from gateway.prefetch.requests import Prefetch, Prefetcher

__all__ = ["Prefetch", "Prefetcher"]
