"""The replicas: what is known of each, and the probes that keep it true."""

from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Charge, Replica, State

__all__ = ["Charge", "Fleet", "Replica", "State"]
