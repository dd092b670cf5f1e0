"""Policies that know nothing of prefixes."""

from collections.abc import Sequence

from gateway.fleet import Replica
from gateway.routing.base import Policy, RequestContext


class RoundRobin(Policy):
    """Each replica in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, request: RequestContext, replicas: Sequence[Replica]) -> Replica:
        """The next one, whatever its load."""
        self._turn += 1
        return replicas[self._turn % len(replicas)]


class LeastLoaded(Policy):
    """The replica with the fewest requests running or waiting; equals take turns."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, request: RequestContext, replicas: Sequence[Replica]) -> Replica:
        """The least loaded, beginning the look at another place each time."""
        self._turn += 1
        count = len(replicas)
        order = (replicas[(self._turn + i) % count] for i in range(count))
        return min(order, key=lambda replica: replica.load)


POLICIES: dict[str, type[Policy]] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}


def create_policy(name: str) -> Policy:
    """The policy of this name, as `routing.policy` spells it."""
    return POLICIES[name]()
