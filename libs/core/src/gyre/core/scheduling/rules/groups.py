"""What becomes of groups that have enough, or wait too long: surplus executions, stale groups."""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import transitions
from gyre.core.scheduling.state import Group, JobState


def cancel_surplus(state: JobState, now: float) -> Body | None:
    """N of the group's N' are done, under `keep: first_finished`: the others are not needed.

    Done is who ended by itself, a time-out included. Who broke or was cancelled does not count, and
    where fewer than N end by themselves nobody is surplus: the group takes what there is.
    """
    if not state.surplus_due or _all_cancelled(state):
        return None
    group = state.groups[next(iter(state.surplus_due))]
    queued, running = _unfinished(state, group)
    return sched.SurplusCancelled(
        based_on=state.sequence, now=now, group=group.group, queued=queued, running=running
    )


def drop_stale(state: JobState, now: float) -> Body | None:
    """Under `on_stale: drop`, a group that every step to come would find older than the bound.

    Unclaimed groups of v_d < version - max_staleness, oldest first: mostly unfinished ones, but a
    ready one too when more of its age came ready together than the steps had room for. Packing
    draws none of them meanwhile. Another group comes for each with the next publication; where the
    job has no further dispatch left, the burst ends early for it (`bursts.end_burst`).
    """
    schedule = state.required_spec.schedule
    if schedule.max_staleness is None or schedule.on_stale != "drop" or not state.unclaimed:
        return None
    if state.core_lost or transitions.steps_done(state) or _all_cancelled(state):
        return None
    oldest = min(state.unclaimed)
    staleness = state.version - oldest
    if staleness <= schedule.max_staleness:
        return None
    group = state.groups[next(iter(state.unclaimed[oldest]))]
    queued, running = _unfinished(state, group)
    return sched.GroupDropped(
        based_on=state.sequence,
        now=now,
        group=group.group,
        staleness=staleness,
        queued=queued,
        running=running,
    )


def _all_cancelled(state: JobState) -> bool:
    return state.cancelled_sent or state.drained_sent


def _unfinished(state: JobState, group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The group's executions that hold no slot yet, and those that hold one."""
    left = [name for name in group.executions if not state.executions[name].terminated]
    queued = tuple(name for name in left if state.executions[name].cell is None)
    return queued, tuple(name for name in left if state.executions[name].cell is not None)
