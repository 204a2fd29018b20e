"""Trainers that die or come back: the core's restore, the trainers' worlds, fences."""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import transitions
from gyre.core.scheduling.state import JobState


def restore(state: JobState, now: float) -> Body | None:
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


def fence(state: JobState, now: float) -> Body | None:
    """A member's trainer or its world died: the epoch ends; living cells above a gap leave the
    batch, and the window is open again."""
    batch = state.batch
    if batch is None or state.core_lost or not (batch.fence_due or batch.reopen_due):
        return None
    lost = tuple(dict.fromkeys(batch.fence_due))
    # By the world's order: a cell that left the job is in the job's order no more.
    rank = {cell: place for place, cell in enumerate(state.world)}
    first_gap = min((rank[cell] for cell in lost if cell in rank), default=len(rank))
    above = tuple(
        cell for cell in batch.joined if cell not in lost and rank.get(cell, 0) > first_gap
    )
    return sched.EpochFenced(
        batch=batch.batch,
        epoch=state.epoch,
        lost=lost,
        dismissed=above,
        members=tuple(c for c in batch.joined if c not in lost and c not in above),
    )


def form_world(state: JobState, now: float) -> Body | None:
    """All living trainers in one world.

    The first world waits for all, a newcomer for the end of the batch and until the present world
    stands; inside a batch only a loss that stops it is mended.
    """
    if state.core_lost or not state.core.trainer_up:
        return None
    if state.epoch == 0:
        due = state.living == state.order
    elif state.batch is None:
        changed = state.living != state.world
        due = state.world_stale or (changed and transitions.in_one_world(state, state.world))
        due = due and state.num_steps_done < state.required_spec.schedule.num_steps
    else:
        cut_off = state.batch.fenced_epoch == state.epoch or state.core.in_world != state.epoch
        due = state.world_stale and cut_off
    if not due:
        return None
    return sched.WorldFormed(
        based_on=state.sequence, now=now, epoch=state.epoch + 1, cells=state.living
    )
