"""Which replica gets a request."""

from gateway.routing.base import Candidate, Policy, Prompt, RequestContext
from gateway.routing.policies import create_policy
from gateway.routing.router import Decision, Matches, Passage, Router

__all__ = [
    "Candidate",
    "Decision",
    "Matches",
    "Passage",
    "Policy",
    "Prompt",
    "RequestContext",
    "Router",
    "create_policy",
]
