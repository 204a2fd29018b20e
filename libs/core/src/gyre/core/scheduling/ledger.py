"""The ledger, eq. (1): C_R = C_s + the capacity of every cell in rollout and ready.

- Capacity leaves at `transition_started` and returns with `role_changed` to rollout.
- free = C_R - (ordered - f): an order holds its slot from the order on, before p moves.
- max(0, min(d - ordered, free)) executions start at once.
- An attempt keeps its slot; `terminated` is final.

Worked example, two cells of 8, N=8, three groups dispatched: C_R = 16, d = 24. Sixteen orders go
out: free = 0. Cell 0 leaves with w = 8 <= 16 - 8: its executions move to cell 1, C_R = 8.
"""

from __future__ import annotations

from itertools import chain, islice, repeat

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


def reserved_capacity(state: JobState) -> int:
    """Slots kept for held-out measurements while the job trains: no more than are left when the
    cells train that must, so that a job which has lost cells goes on."""
    spec = state.required_spec
    reserved = spec.evaluation.heldout_capacity
    if reserved == 0:
        return 0
    staying = state.in_order[spec.schedule.min_training_cells(len(state.in_order)) :]
    return min(reserved, sum(cell.capacity for cell in (*staying, *state.in_pool)))


def training_capacity(state: JobState) -> int:
    """C_R less what is reserved: what training executions may fill, and w is held against."""
    return rollout_capacity(state) - reserved_capacity(state)


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


def startable(state: JobState) -> list[Queued]:
    """The queues' heads for which there is room. A job that reserves capacity while it trains fills
    the reserve with held-out executions and the rest with training ones; else all is for both."""
    free = free_capacity(state)
    if state.phase != "training" or reserved_capacity(state) == 0:
        return [*islice(chain(state.heldout_queue, state.queue), max(0, free))]
    measuring = state.heldout.ordered - state.heldout.terminated
    training = state.training.ordered - state.training.terminated
    reserve = min(reserved_capacity(state) - measuring, free)
    heldout = [*islice(state.heldout_queue, max(0, reserve))]
    room = min(training_capacity(state) - training, free - len(heldout))
    return [*heldout, *islice(state.queue, max(0, room))]


def start_orders(state: JobState) -> tuple[StartOrder, ...]:
    """What may start now: the queue's head, placed on the cells that will serve longest.

    The pool is filled first, then the cells with the highest index, so that the core, which leaves
    first, has least to move.
    """
    if not state.queue and not state.heldout_queue:
        return ()
    waiting = startable(state)[:MAX_ORDERS]
    if not waiting:
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
        for queued, cell in zip(waiting, slots, strict=False)
    )


def moves_off(state: JobState, leaving: Cell) -> tuple[Move, ...]:
    """Where the executions of `leaving` go: the pool first, then rollout cells in reverse index
    order (Serving law).

    Executions beyond the free slots stay with the last destination: a lost cell may leave more than
    fits, and a call that waits in an engine's queue is better than one that fails. Where no cell
    serves they go to those that will first: their calls wait for its engine.
    """
    if not leaving.executions:
        return ()
    destinations = [cell for cell in _longest_serving(state) if cell.cell != leaving.cell]
    destinations = destinations or _next_to_serve(state, leaving)
    if not destinations:
        return ()
    free = (cell.cell for cell in destinations for _ in range(cell.free_slots))
    slots = chain(free, repeat(destinations[-1].cell))
    return tuple(
        Move(execution=execution, source=leaving.cell, destination=destination)
        for execution, destination in zip(leaving.executions, slots, strict=False)
    )


def _longest_serving(state: JobState) -> list[Cell]:
    return [cell for cell in (*state.in_pool, *reversed(state.in_order)) if cell.serving]


def _next_to_serve(state: JobState, leaving: Cell) -> list[Cell]:
    """Who boots or is on its way back, then who trains; the core comes last among either."""
    others = [c for c in (*state.in_pool, *reversed(state.in_order)) if c.cell != leaving.cell]
    return sorted(others, key=lambda cell: cell.role in ("to_training", "training"))
