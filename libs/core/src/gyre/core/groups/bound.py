"""The bound on staleness, as packing keeps it under `on_stale: wait`: draw who may be drawn, so
that whoever must be drawn still fits.

A group of v_d may be drawn at v_t = v_d + bound at the latest. A batch at v_t has `slots` places
left, every later one B. Drawing oldest first would keep the bound if groups came ready in order;
they do not, so a younger group is drawn only if afterwards, for every older v_d',

    groups of v_d' and older that are not drawn  <=  slots + B * (v_d' + bound - v_t)

with ready and unready ones counted alike. Otherwise the step waits for one of those. It never waits
for ever: the executions of a group run on whatever the step does, and one of the groups that the
tight inequality counts may always be drawn. A job's dispatch keeps all inequalities possible: at a
publication phi B groups are in the buffer and mu B come, and these (phi + mu) B <= (bound + 1) B
groups have the next bound + 1 steps (`JobSpec` refuses a smaller bound).

Should more be due at a step than it has places (the left side exceeds the right before anybody is
drawn), those groups alone are drawn, B of them; the others pass the bound, go first in the next
step, and the report shows it in their staleness.
"""

from __future__ import annotations

from collections.abc import Mapping


def leaves_room(
    undrawn: Mapping[int, int], candidate: int, *, version: int, bound: int, slots: int, batch: int
) -> bool:
    """Whether a group of v_d `candidate` may be drawn at v_t `version`.

    undrawn: v_d -> groups that no batch has drawn, the candidate among them. slots: places left in
    the open batch; batch: B, places in a later one. O(number of versions in flight).
    """
    due = 0
    for dispatched in sorted(undrawn):
        if dispatched >= candidate:
            break
        due += undrawn[dispatched]
        steps_left = max(0, dispatched + bound - version)
        if due > slots - 1 + batch * steps_left:
            return False
    return True
