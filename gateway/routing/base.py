"""The contract of routing policies."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.fleet import Charge, Replica


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a policy may know of a request."""

    request_id: str
    path: str
    model: str
    body: Mapping[str, Any]


class Policy(ABC):
    """Chooses a replica for each request. Called on the event loop: it may not block."""

    @abstractmethod
    def pick(self, request: RequestContext, replicas: Sequence[Replica]) -> Replica:
        """Choose among `replicas` (at least one, all up, all serving the model)."""

    def charge(self, request: RequestContext, replica: Replica) -> Charge:
        """Count the request's work against the replica it goes to; the caller releases it."""
        return replica.charge()
