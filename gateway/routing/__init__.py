"""Which replica gets a request."""

from gateway.routing.base import Policy, RequestContext
from gateway.routing.policies import create_policy

__all__ = ["Policy", "RequestContext", "create_policy"]
