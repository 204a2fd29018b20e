"""What the scheduler does next, from the state alone. One decision at a time.

`next_decision(state, now)` returns the event to append, or None when there is nothing to decide;
the shell appends it, folds it and asks again. Rules are tried in the order of `_RULES`: endings
first, then what frees or fills capacity, then roles, then batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import ledger, transitions
from gyre.core.scheduling.plans import heldout_groups, training_groups
from gyre.core.scheduling.state import JobState

NextPhase = Literal["heldout_before", "training", "heldout_after", "done"]
Ending = Literal["succeeded", "cancelled", "failed"]

# A cell whose engine fails to come up this often in a row will not come up: the job says so, ends.
MAX_BOOT_FAILURES = 3
# A core lost this often since its last durable checkpoint dies of the work itself, not by accident.
MAX_RESTORES = 5
# Likewise a trainer that dies this often without one step between: restarting it changes nothing.
MAX_TRAINER_LOSSES = 8


def next_decision(state: JobState, now: float) -> Body | None:
    """The next event of this job's scheduler, None when nothing follows at `now` (unix seconds)."""
    if state.status != "running":
        return None
    for rule in _RULES:
        decision = rule(state, now)
        if decision is not None:
            return decision
    return None


def next_wake(state: JobState) -> float | None:
    """When a decision may fall due without a new fact: the end of the supply timer."""
    if state.status != "running" or state.supply_since is None:
        return None
    return state.supply_since + state.required_spec.schedule.tau_s


def _cancel(state: JobState, now: float) -> Body | None:
    if state.cancel_requested is None:
        return None
    if not state.cancelled_sent:
        return sched.ExecutionsCancelled(
            based_on=state.sequence,
            now=now,
            queued=tuple(queued.execution for queued in state.queue),
            running=tuple(name for cell in state.in_order for name in cell.executions),
            reason=state.cancel_requested,
        )
    if ledger.running(state) == 0:
        return _finish(state, now, "cancelled", state.cancel_requested)
    return None


def _fail(state: JobState, now: float) -> Body | None:
    for cell in state.in_order:
        if cell.num_boot_failures >= MAX_BOOT_FAILURES:
            what = "engine does not start"
        elif cell.num_trainer_losses >= MAX_TRAINER_LOSSES:
            what = f"trainer lost {cell.num_trainer_losses} times without a step between"
        else:
            continue
        return _finish(state, now, "failed", f"cell {cell.cell}: {what}: {cell.last_error}")
    if state.core_lost and state.num_restores >= MAX_RESTORES:
        return _finish(
            state,
            now,
            "failed",
            f"the core was lost {state.num_restores + 1} times since its last checkpoint: "
            f"{state.core.last_error}",
        )
    return None


def _restore(state: JobState, now: float) -> Body | None:
    """The core's trainer is back without the weights it held: go on from the durable checkpoint."""
    if not state.core_lost or not state.core.trainer_up:
        return None
    since = state.durable_version
    return sched.Restored(
        based_on=state.sequence,
        now=now,
        lineage=state.lineage + 1,
        version=since,
        checkpoint=state.durable_path,
        returned_groups=tuple(
            group.group
            for group in state.groups.values()
            if group.claimed_version is not None and group.claimed_version >= since
        ),
    )


def _form_world(state: JobState, now: float) -> Body | None:
    """All living trainers in one world.

    The first world waits for all, a newcomer for the end of the batch and until the present world
    stands; inside a batch only a loss that stops it is mended.
    """
    living = tuple(cell.cell for cell in state.in_order if cell.trainer_up)
    if state.core_lost or not state.core.trainer_up:
        return None
    if state.epoch == 0:
        due = living == state.order
    elif state.batch is None:
        stands = _in_one_world(state, state.world)
        due = state.world_stale or (living != state.world and stands)
        due = due and state.num_steps_done < state.required_spec.schedule.num_steps
    else:
        cut_off = state.batch.fenced_epoch == state.epoch or state.core.in_world != state.epoch
        due = state.world_stale and cut_off
    if not due:
        return None
    return sched.WorldFormed(based_on=state.sequence, now=now, epoch=state.epoch + 1, cells=living)


def _fence(state: JobState, now: float) -> Body | None:
    """A member's trainer or its world died: the epoch ends; living cells above a gap leave the
    batch, and the window is open again."""
    batch = state.batch
    if batch is None or state.core_lost or not (batch.fence_due or batch.reopen_due):
        return None
    lost = tuple(dict.fromkeys(batch.fence_due))
    first_gap = min((state.cells[cell].index for cell in lost), default=len(state.order))
    above = tuple(
        cell for cell in batch.joined if cell not in lost and state.cells[cell].index > first_gap
    )
    return sched.EpochFenced(
        batch=batch.batch,
        epoch=state.epoch,
        lost=lost,
        dismissed=above,
        members=tuple(c for c in batch.joined if c not in lost and c not in above),
    )


def _change_phase(state: JobState, now: float) -> Body | None:
    start = _next_phase(state)
    if start == "done":
        return _finish(state, now, "succeeded", "all steps done")
    if start is None:
        return None
    return sched.PhaseStarted(based_on=state.sequence, now=now, phase=start)


def _next_phase(state: JobState) -> NextPhase | None:
    heldout = bool(state.heldout_tasks)
    all_serving = all(cell.serving for cell in state.in_order if cell.role != "lost")
    match state.phase:
        case "booting":
            if all_serving and state.epoch > 0:
                return "heldout_before" if heldout else "training"
        case "heldout_before":
            if _heldout_done(state, 1):
                return "training"
        case "training":
            done = state.num_steps_done >= state.required_spec.schedule.num_steps
            if done and state.published == state.version and state.burst is None and all_serving:
                return "heldout_after" if heldout else "done"
        case "heldout_after":
            # Scoring overlaps training, but the job is over only when every score is in.
            if _heldout_done(state, 2) and state.num_heldout_scored == state.heldout.dispatched:
                return "done"
    return None


def _heldout_done(state: JobState, rounds: int) -> bool:
    total = rounds * len(state.heldout_tasks)
    return state.heldout.dispatched == total and state.heldout.terminated == total


def _dispatch(state: JobState, now: float) -> Body | None:
    if not state.dispatch_due:
        return None
    if state.phase == "training":
        first = state.num_groups_dispatched == 0
        num = transitions.next_dispatch(state, first=first)
        groups = training_groups(state, num)
    else:
        groups = heldout_groups(state)
    if not groups:
        return None
    return sched.Dispatched(
        based_on=state.sequence,
        now=now,
        kind="training" if state.phase == "training" else "heldout",
        groups=groups,
        version=state.published,
        lineage=state.lineage,
    )


def _start(state: JobState, now: float) -> Body | None:
    if state.cancel_requested is not None:
        return None
    orders = ledger.start_orders(state)
    if not orders:
        return None
    return sched.StartOrdered(based_on=state.sequence, now=now, orders=orders)


def _supply_timer(state: JobState, now: float) -> Body | None:
    cell = transitions.next_cell(state)
    running = state.supply_since is not None
    wanted = cell is not None and transitions.supplied(state)
    if running == wanted:
        return None
    event = sched.SupplyTimerStarted if wanted else sched.SupplyTimerStopped
    return event(
        based_on=state.sequence,
        now=now,
        ready=state.num_ready_unclaimed,
        needed=transitions.groups_needed(state),
    )


def _transition(state: JobState, now: float) -> Body | None:
    cell = transitions.next_cell(state)
    if cell is None or state.supply_since is None:
        return None
    if now < state.supply_since + state.required_spec.schedule.tau_s:
        return None
    if not transitions.waterlevel_allows(state, cell):
        return None
    return sched.TransitionStarted(
        based_on=state.sequence,
        now=now,
        cell=cell.cell,
        to="training",
        moves=ledger.moves_off(state, cell),
        waterlevel=state.training.waterlevel,
        capacity_after=ledger.rollout_capacity(state) - cell.capacity,
        batch=state.batch.batch if state.batch else None,
    )


def _start_burst(state: JobState, now: float) -> Body | None:
    if state.burst is not None or state.phase != "training" or state.core.role != "training":
        return None
    if state.core_lost:
        return None
    if state.dispatch_due and transitions.next_dispatch(state, first=False) > 0:
        return None
    schedule = state.required_spec.schedule
    num_steps = min(schedule.mu, schedule.num_steps - state.num_steps_done)
    if num_steps <= 0:
        return None
    return sched.BurstStarted(
        based_on=state.sequence,
        now=now,
        burst=state.num_bursts,
        first_step=state.num_steps_done,
        num_steps=num_steps,
    )


def _open_batch(state: JobState, now: float) -> Body | None:
    burst = state.burst
    if burst is None or burst.ended or state.batch is not None or state.core_lost:
        return None
    if not burst.holds(state.num_steps_done) or not transitions.trainable(state, state.core):
        return None
    step = state.num_steps_done
    return sched.BatchOpened(
        based_on=state.sequence,
        now=now,
        batch=f"l{state.lineage}-s{step:04d}",
        step=step,
        version=state.version,
        lineage=state.lineage,
        num_groups=state.required_spec.schedule.groups_per_step,
    )


def _close_window(state: JobState, now: float) -> Body | None:
    batch = state.batch
    if batch is None or batch.members is not None or not batch.all_claimed:
        return None
    if batch.fence_due or state.epoch <= batch.fenced_epoch:
        return None
    members = _joined_prefix(state)
    if not members or set(members) != set(batch.joined) or not _in_one_world(state, members):
        return None
    last = state.burst is not None and not state.burst.holds(batch.step + 1)
    return sched.JoinWindowClosed(
        based_on=state.sequence,
        now=now,
        batch=batch.batch,
        epoch=state.epoch,
        members=members,
        final=last,
    )


def _joined_prefix(state: JobState) -> tuple[int, ...]:
    """The longest prefix of the world's cells that have joined the batch."""
    batch = state.batch
    members: list[int] = []
    for cell in state.world:
        if batch is None or cell not in batch.joined:
            break
        members.append(cell)
    return tuple(members)


def _in_one_world(state: JobState, members: tuple[int, ...]) -> bool:
    return all(state.cells[cell].in_world == state.epoch for cell in members)


def _end_burst(state: JobState, now: float) -> Body | None:
    burst = state.burst
    if burst is None or burst.ended or state.batch is not None:
        return None
    if burst.holds(state.num_steps_done):
        return None
    return sched.BurstEnded(
        based_on=state.sequence,
        now=now,
        burst=burst.burst,
        core_stays=transitions.core_stays(state),
        waterlevel=state.training.waterlevel,
        next_dispatch=transitions.next_dispatch(state, first=False)
        * state.required_spec.schedule.executions_per_group,
        capacity_without_core=transitions.capacity_without_core(state),
        ready=transitions.supply(state),
    )


def _finish(state: JobState, now: float, status: Ending, reason: str) -> Body:
    return sched.JobFinished(based_on=state.sequence, now=now, status=status, reason=reason)


_RULES: tuple[Callable[[JobState, float], Body | None], ...] = (
    _fail,
    _cancel,
    _restore,
    _fence,
    _form_world,
    _change_phase,
    _dispatch,
    _start,
    _end_burst,
    _start_burst,
    _open_batch,
    _close_window,
    _supply_timer,
    _transition,
)
