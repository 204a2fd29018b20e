"""The decider's rules: each looks at the state and returns the event that is due, or None.

`ORDER` is the order in which they are tried: endings first, then cells that died, then what frees
or fills capacity, then batches, then roles.
"""

from __future__ import annotations

from collections.abc import Callable

from gyre.contracts.envelope import Body
from gyre.core.scheduling.rules import bursts, cells, executions, life, roles
from gyre.core.scheduling.state import JobState

Rule = Callable[[JobState, float], Body | None]

ORDER: tuple[Rule, ...] = (
    life.fail,
    life.cancel,
    cells.restore,
    cells.fence,
    cells.form_world,
    life.change_phase,
    executions.dispatch,
    executions.start,
    bursts.end_burst,
    bursts.start_burst,
    bursts.open_batch,
    bursts.close_window,
    roles.supply_timer,
    roles.transition,
)
