"""The scheduler's law: `evolve` folds a fact into a job's state, `next_decision` says what follows.

The same pair runs the live scheduler, the replay, and the property tests. Nothing here reads a
clock or does I/O: `now` is an argument.
"""

from gyre.core.scheduling.decide import next_decision, next_wake
from gyre.core.scheduling.evolve import evolve
from gyre.core.scheduling.state import JobState

__all__ = ["JobState", "evolve", "next_decision", "next_wake"]
