"""Fold one fact into a job's state. O(1) in executions and groups; mutates and returns the state.

One handler per event type in `_HANDLERS`; an event without one changes nothing but the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body
from gyre.core.scheduling import fold_cells, fold_executions, fold_training
from gyre.core.scheduling.state import JobState

_HANDLERS: dict[type[Body], Callable[[JobState, Any], None]] = {
    **fold_executions.HANDLERS,
    **fold_training.HANDLERS,
    **fold_cells.HANDLERS,
}


def evolve(state: JobState, sequence: int, body: Body) -> JobState:
    """Fold `body`, which lies in the log at stream sequence `sequence`. Mutates `state`."""
    handler = _HANDLERS.get(type(body))
    if handler is not None:
        handler(state, body)
    state.sequence = sequence
    return state


def changes_state(kind: type[Body]) -> bool:
    """False for facts that move the sequence and nothing else."""
    return kind in _HANDLERS
