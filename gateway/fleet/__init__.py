"""The replicas: what is known of each, the probes that keep it true, and how they come and go."""

from gateway.fleet.agent import Agent
from gateway.fleet.builder import Builder
from gateway.fleet.fleet import NO_REPLICA, Fleet
from gateway.fleet.replica import Charge, Replica, State
from gateway.fleet.roster import Lease, Roster

__all__ = ["NO_REPLICA", "Agent", "Builder", "Charge", "Fleet", "Lease", "Replica", "Roster", "State"]
