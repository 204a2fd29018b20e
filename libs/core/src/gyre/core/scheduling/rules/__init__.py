"""The decider's rules: each looks at the state and returns the event that is due, or None.

`ORDER` is the order in which they are tried: who is left and endings first, then trainers that
died, then what frees or fills capacity, then batches, then roles.
"""

from __future__ import annotations

from collections.abc import Callable

from gyre.contracts.envelope import Body
from gyre.core.scheduling.rules import bursts, cells, executions, groups, life, members, roles
from gyre.core.scheduling.state import JobState

Rule = Callable[[JobState, float], Body | None]

ORDER: tuple[Rule, ...] = (
    members.none_left,
    members.watch,
    members.lose,
    life.fail,
    life.cancel,
    members.release,
    cells.restore,
    cells.fence,
    members.serve_again,
    cells.form_world,
    life.drain,
    life.change_phase,
    groups.cancel_surplus,
    groups.drop_stale,
    executions.dispatch,
    executions.measure,
    executions.start,
    bursts.end_burst,
    bursts.start_burst,
    bursts.open_batch,
    bursts.close_window,
    roles.supply_timer,
    roles.transition,
)
