"""What the log is owed by a job's groups: who is in quarantine, the next `group_ready`, the next
draw, whom to train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gyre.contracts.events.groups import ExecutionOutcome, ExecutionQuarantined, GroupReady
from gyre.core.advantage import AdvantageKind, Outcome, group_advantages
from gyre.core.groups.bound import leaves_room
from gyre.core.groups.state import Batch, Group, JobGroups

# What an execution comes to that was not kept.
SURPLUS = Outcome(disposition="surplus", reward=None)


def next_quarantined(state: JobGroups, damaged: Mapping[str, str]) -> ExecutionQuarantined | None:
    """The first of the `damaged` executions of which it is not said yet, with what is wrong with
    its records. What was trained before they were lost has been trained."""
    batch = state.batch
    for execution, error in damaged.items():
        group = state.group_of.get(execution)
        if group is None or group.dropped or execution in group.quarantined:
            continue
        consumed = group.batch is not None and (batch is None or group.batch != batch.batch)
        if not consumed and (batch is None or execution not in batch.emitted):
            return ExecutionQuarantined(group=group.group, execution=execution, error=error)
    return None


def next_ready(state: JobGroups) -> GroupReady | None:
    """The `group_ready` of the first complete group that has none."""
    group = next(iter(state.complete.values()), None)
    if group is None:
        return None
    spec = state.required_spec
    return group_ready(group, spec.objective.advantage, seed=spec.seed)


def group_ready(group: Group, kind: AdvantageKind, *, seed: int) -> GroupReady:
    """The outcome of a complete group, executions in the order of their dispatch. Of N' the N kept
    make the baseline; the others are surplus, whatever became of them. seed: the job's."""
    kept = group.kept(seed)
    outcomes = [
        group.scores[execution].outcome if execution in kept else SURPLUS
        for execution in group.executions
    ]
    weighed = group_advantages(outcomes, kind)
    return GroupReady(
        group=group.group,
        task=group.task,
        version=group.version,
        lineage=group.lineage,
        zero_weight=weighed.zero_weight,
        outcomes=tuple(
            ExecutionOutcome(
                execution=execution,
                disposition=outcome.disposition,
                reward=outcome.reward,
                advantage=advantage,
            )
            for execution, outcome, advantage in zip(
                group.executions, outcomes, weighed.advantages, strict=True
            )
        ),
    )


def next_draw(state: JobGroups) -> Group | None:
    """The group that packing draws now, the oldest ready one; None above the queue's low mark, and
    while the bound on staleness keeps the batch's places for groups that are not ready."""
    batch = state.batch
    if batch is None or batch.closed or batch.all_drawn or batch.num_queued >= batch.low_mark:
        return None
    schedule = state.required_spec.schedule
    bound = schedule.max_staleness
    if bound is None:
        return min(state.drawable.values(), key=_age, default=None)
    if schedule.on_stale == "drop":
        # An older one is the scheduler's to drop.
        fresh = (g for g in state.drawable.values() if batch.version - g.version <= bound)
        return min(fresh, key=_age, default=None)
    oldest = min(state.drawable.values(), key=_age, default=None)
    if oldest is None or not leaves_room(
        state.undrawn,
        oldest.version,
        version=batch.version,
        bound=bound,
        slots=batch.num_groups - len(batch.groups),
        batch=batch.num_groups,
    ):
        return None
    return oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """An execution with a weight of its own in the open batch. attempt: the one that was scored."""

    execution: str
    group: str
    attempt: int
    advantage: float


def trainees(batch: Batch) -> list[Trainee]:
    """Valid executions of the batch's weighted groups, in the order they were drawn; without those
    in quarantine."""
    return [
        Trainee(
            execution=outcome.execution,
            group=group.group,
            attempt=attempt,
            advantage=outcome.advantage,
        )
        for group in batch.groups
        if group.ready is not None and not group.ready.zero_weight
        for outcome in group.ready.outcomes
        if outcome.disposition == "valid"
        and outcome.execution not in group.quarantined
        and (attempt := group.scores[outcome.execution].attempt) is not None
    ]


def _age(group: Group) -> tuple[int, int, int]:
    return (group.lineage, group.version, group.order)
