"""Which replica gets a request."""

from gateway.routing.base import Candidate, Policy, Prompt, RequestContext
from gateway.routing.decision import Decision, Matches, Passage, decide
from gateway.routing.loading import Held
from gateway.routing.policies import create_policy

__all__ = [
    "Candidate",
    "Decision",
    "Held",
    "Matches",
    "Passage",
    "Policy",
    "Prompt",
    "RequestContext",
    "create_policy",
    "decide",
]
