"""Bursts and batches: when a step begins, who reduces, and eq. (3) at the end."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import transitions
from gyre.core.scheduling.cadence import groups_due
from gyre.core.scheduling.policies import BurstEnd, policy_of, whole_burst_ready
from gyre.core.scheduling.state import JobState


def start_burst(state: JobState, now: float) -> Body | None:
    if state.burst is not None or state.phase != "training" or state.core.role != "training":
        return None
    if state.core_lost or state.paused or state.drain_requested is not None:
        return None
    cadence = policy_of(state).cadence
    if state.dispatch_due and groups_due(state, cadence) > 0:
        return None
    streaming = state.required_spec.schedule.streaming
    num_steps = cadence.steps(state, state.num_steps_done)
    if num_steps <= 0 or not (streaming or whole_burst_ready(state, cadence)):
        return None
    return sched.BurstStarted(
        based_on=state.sequence,
        now=now,
        burst=state.num_bursts,
        first_step=state.num_steps_done,
        num_steps=num_steps,
    )


def open_batch(state: JobState, now: float) -> Body | None:
    burst = state.burst
    if burst is None or burst.ended or state.batch is not None or state.core_lost:
        return None
    if (
        state.paused
        or not burst.holds(state.num_steps_done)
        or not transitions.trainable(state, state.core)
    ):
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


def close_window(state: JobState, now: float) -> Body | None:
    batch = state.batch
    if batch is None or batch.members is not None or not batch.all_claimed:
        return None
    if batch.fence_due or state.epoch <= batch.fenced_epoch:
        return None
    members = _joined_prefix(state)
    if (
        not members
        or set(members) != set(batch.joined)
        or not transitions.in_one_world(state, members)
    ):
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


def end_burst(state: JobState, now: float) -> Body | None:
    burst = state.burst
    if burst is None or not is_over(state):
        return None
    end = after_burst(state)
    return sched.BurstEnded(
        based_on=state.sequence,
        now=now,
        burst=burst.burst,
        core_stays=end.core_stays,
        waterlevel=state.training.waterlevel,
        next_dispatch=end.due.executions,
        capacity_without_core=end.capacity,
        ready=transitions.supply(state),
        staying_satellites=end.staying_satellites,
    )


def is_over(state: JobState) -> bool:
    """The open burst has made its last step, or dropped groups leave too few for another one."""
    burst = state.burst
    if burst is None or burst.ended or state.batch is not None:
        return False
    return not burst.holds(state.num_steps_done) or transitions.short_of_groups(state)


def after_burst(state: JobState) -> BurstEnd:
    """What the policy says of the burst's end, less those who may not stay."""
    end = policy_of(state).at_burst_end(state)
    # Who is wanted back goes back, and whoever trains behind it too: training cells are a prefix.
    core_stays = end.core_stays and state.core.cell not in state.released
    # Drained, the job begins no further burst.
    core_stays = core_stays and state.drain_requested is None
    staying = takewhile(lambda cell: cell not in state.released, end.staying_satellites)
    return replace(
        end, core_stays=core_stays, staying_satellites=tuple(staying) if core_stays else ()
    )
