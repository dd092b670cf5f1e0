"""The replicas: what is known of each, and the probes that keep it true."""

from gateway.fleet.fleet import NO_REPLICA, Fleet
from gateway.fleet.replica import Charge, Replica, State

__all__ = ["NO_REPLICA", "Charge", "Fleet", "Replica", "State"]
