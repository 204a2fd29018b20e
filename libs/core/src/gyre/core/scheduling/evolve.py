"""Fold one fact into a job's state. O(1) in executions and groups; mutates and returns the state.

One handler per event type in `_HANDLERS`; an event without one changes nothing but the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events.cells import RoleChanged
from gyre.contracts.events.scheduling import JobFinished
from gyre.core.scheduling import fold_cells, fold_executions, fold_training
from gyre.core.scheduling.state import JobState

_HANDLERS: dict[type[Body], Callable[[JobState, Any], None]] = {
    **fold_executions.HANDLERS,
    **fold_training.HANDLERS,
    **fold_cells.HANDLERS,
}
# What a job without some of its facts can still be told: its end, and who has left it.
_FOLDED_TO_THE_END = (JobFinished, RoleChanged)


def evolve(state: JobState, sequence: int, body: Body) -> JobState:
    """Fold `body`, which lies in the log at stream sequence `sequence`. Mutates `state`."""
    handler = _HANDLERS.get(type(body))
    if handler is not None and (not state.lost_fact or isinstance(body, _FOLDED_TO_THE_END)):
        handler(state, body)
    state.sequence = sequence
    return state


def changes_state(kind: type[Body]) -> bool:
    """False for facts that move the sequence and nothing else."""
    return kind in _HANDLERS
