"""A job without a cluster: the live scheduler's decider in virtual time.

`Simulation` plays every other service; what is decided comes from `gyre.core.scheduling` alone.
"""

from gyre.simulator.engine import Simulation, StalledError
from gyre.simulator.outcome import Outcome

__all__ = ["Outcome", "Simulation", "StalledError"]
