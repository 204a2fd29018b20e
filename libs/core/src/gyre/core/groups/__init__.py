"""The trajectory buffer: a job's groups from dispatch to consumption, and the open batch's queue.

`evolve` folds any fact of the job (and `calls_sealed`) into a JobGroups; the `next_*` functions say
what the trajectory service owes the log. `evolve` mutates the state and nobody else does; folding
one event is O(its own size).

Invariants (tests/properties/test_group_law.py):
- a group is complete when each execution that is kept (`keep`) has a final disposition and its
  calls are sealed or in quarantine, and a complete group gets exactly one `group_ready`: no group
  vanishes, one of zero weight neither; only `group_dropped` takes one out, and says so;
- a ready group is drawable until a batch claims it, and in at most one batch of a lineage;
- a claim counts for the open batch only, and only for its first B groups: one that lands behind a
  `restored`, or one too many of a writer that died, is void;
- groups are drawn oldest policy version first, then in the order of dispatch, and under a bound
  on staleness none is drawn past it (`bound`).
"""

from gyre.core.groups.bound import leaves_room
from gyre.core.groups.evolve import evolve
from gyre.core.groups.owed import (
    Trainee,
    group_ready,
    next_draw,
    next_quarantined,
    next_ready,
    trainees,
)
from gyre.core.groups.state import Batch, Group, JobGroups, Scored

__all__ = [
    "Batch",
    "Group",
    "JobGroups",
    "Scored",
    "Trainee",
    "evolve",
    "group_ready",
    "leaves_room",
    "next_draw",
    "next_quarantined",
    "next_ready",
    "trainees",
]
