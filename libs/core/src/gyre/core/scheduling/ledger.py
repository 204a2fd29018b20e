"""The ledger, eq. (1): C_R = C_s + the capacity of every cell in rollout and ready.

- Capacity leaves at `transition_started` and returns with `role_changed` to rollout.
- free = C_R - (ordered - f): an order holds its slot from the order on, before p moves.
- max(0, min(d - ordered, free)) executions start at once.
- An attempt keeps its slot; `terminated` is final.

Worked example, two cells of 8, N=8, three groups dispatched: C_R = 16, d = 24. Sixteen orders go
out: free = 0. Cell 0 leaves with w = 8 <= 16 - 8: its executions move to cell 1, C_R = 8.
"""

from __future__ import annotations

from gyre.contracts.events.scheduling import Move, StartOrder
from gyre.core.scheduling.state import Cell, JobState, Queued

# The most orders in one event, which holds 256 kB; the next event follows at once.
MAX_ORDERS = 400


def rollout_capacity(state: JobState) -> int:
    """C_R in executions, eq. (1): the pool's cells serve too, together they are C_s."""
    return state.serving_capacity


def pool_capacity(state: JobState) -> int:
    """C_s: what the pool's living cells hold."""
    return sum(cell.capacity for cell in state.in_pool if cell.role != "lost")


def running(state: JobState) -> int:
    """Slots held: ordered and not terminated, training and held-out together."""
    return (
        state.training.ordered
        - state.training.terminated
        + state.heldout.ordered
        - state.heldout.terminated
    )


def free_capacity(state: JobState) -> int:
    return rollout_capacity(state) - running(state)


def start_orders(state: JobState) -> tuple[StartOrder, ...]:
    """What may start now: the queue's head, placed on the cells that will serve longest.

    The pool is filled first, then the cells with the highest index, so that the core, which leaves
    first, has least to move.
    """
    room = min(len(state.queue), free_capacity(state), MAX_ORDERS)
    if room <= 0:
        return ()
    slots = (cell.cell for cell in _longest_serving(state) for _ in range(cell.free_slots))
    return tuple(
        StartOrder(
            execution=queued.execution,
            group=queued.group,
            task=queued.task,
            cell=cell,
            seed=queued.seed,
        )
        for queued, cell in zip(_head(state, room), slots, strict=False)
    )


def moves_off(state: JobState, leaving: Cell) -> tuple[Move, ...]:
    """Where the executions of `leaving` go: the pool first, then rollout cells in reverse index
    order (Serving law).

    Executions beyond the free slots stay with the last destination: a lost cell may leave more than
    fits, and a call that waits in an engine's queue is better than one that fails.
    """
    destinations = [cell for cell in _longest_serving(state) if cell.cell != leaving.cell]
    if not destinations:
        return ()
    slots = [cell.cell for cell in destinations for _ in range(cell.free_slots)]
    overflow = destinations[-1].cell
    return tuple(
        Move(
            execution=execution,
            source=leaving.cell,
            destination=slots[place] if place < len(slots) else overflow,
        )
        for place, execution in enumerate(leaving.executions)
    )


def _longest_serving(state: JobState) -> list[Cell]:
    return [cell for cell in (*state.in_pool, *reversed(state.in_order)) if cell.serving]


def _head(state: JobState, num: int) -> list[Queued]:
    return [state.queue[place] for place in range(num)]
