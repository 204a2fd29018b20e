"""Folding facts into a JobGroups. The only code that mutates one."""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.cells import BatchJoined
from gyre.contracts.events.executions import Terminated
from gyre.contracts.events.groups import (
    ExecutionQuarantined,
    GroupClaimed,
    GroupReady,
    MicroStepEmitted,
    StreamClosed,
)
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.scheduling import (
    BatchOpened,
    CellJoined,
    CellLost,
    CellReleased,
    Dispatched,
    EpochFenced,
    ExecutionsCancelled,
    GroupDropped,
    GroupPlan,
    JobFinished,
    JobStarted,
    JobSubmitted,
    Restored,
    SurplusCancelled,
    TransitionStarted,
)
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded, PlaceholderScored
from gyre.contracts.events.steps import MicroStepClaimed, StepCompleted
from gyre.core.advantage import Disposition, Outcome
from gyre.core.execution import ended_by_itself
from gyre.core.groups.state import Batch, Group, JobGroups, Scored


def evolve(state: JobGroups, sequence: int, body: Body) -> None:
    """Fold one event. sequence: its stream sequence. Events that do not concern groups pass by."""
    match body:
        case JobSubmitted():
            state.spec = body.spec
        case JobFinished() | FactLost(execution=None):
            state.finished = True
        case Dispatched(kind="training"):
            for plan in body.groups:
                _dispatch(state, plan, body)
        case Dispatched(kind="heldout"):
            state.heldout.update(e for plan in body.groups for e in plan.executions)
            state.sealed_early -= state.heldout
        case Evaluated(execution=execution, reward=reward, attempt=attempt):
            _score(state, execution, "valid", reward, attempt)
        case ExecutionExcluded(execution=execution):
            _score(state, execution, "excluded", None, None)
        case PlaceholderScored(execution=execution):
            _score(state, execution, "placeholder", 0.0, None)
        case ExecutionsCancelled(queued=queued) | SurplusCancelled(queued=queued):
            _never_start(state, queued)
        case GroupDropped():
            _never_start(state, body.queued)
            _drop(state, body.group)
        case FactLost(execution=str(execution)):
            _never_start(state, (execution,))
        case Terminated(execution=execution, reason=reason):
            _end(state, execution, by_itself=ended_by_itself(reason))
        case CallsSealed(execution=execution):
            _seal(state, execution)
        case ExecutionQuarantined():
            _quarantine(state, sequence, body)
        case GroupReady():
            _ready(state, sequence, body)
        case GroupClaimed():
            _claim(state, sequence, body)
        case Restored(returned_groups=returned):
            _restore(state, returned)
        case JobStarted(cells=cells):
            state.order = cells
        case CellJoined(cell=cell):
            state.order = (*state.order, cell)
        case CellLost(cell=cell) | CellReleased(cell=cell):
            _core_leaves(state, cell)
            state.order = tuple(other for other in state.order if other != cell)
        case TransitionStarted(to="rollout", cell=cell):
            _core_leaves(state, cell)
        case _:
            _evolve_batch(state, sequence, body)


def _dispatch(state: JobGroups, plan: GroupPlan, body: Dispatched) -> None:
    schedule = state.required_spec.schedule
    group = Group(
        group=plan.group,
        task=plan.task,
        executions=plan.executions,
        version=body.version,
        lineage=body.lineage,
        order=len(state.groups),
        num_kept=schedule.executions_per_group,
        keep=schedule.keep,
    )
    state.undrawn[group.version] += 1
    state.groups[group.group] = group
    state.group_of.update(dict.fromkeys(plan.executions, group))
    group.sealed = state.sealed_early.intersection(plan.executions)
    state.sealed_early -= group.sealed


def _score(
    state: JobGroups,
    execution: str,
    disposition: Disposition,
    reward: float | None,
    attempt: int | None,
) -> None:
    """The first final disposition stands: a score is never overwritten."""
    group = state.group_of.get(execution)
    if group is None or execution in group.scores:
        return
    outcome = Outcome(disposition=disposition, reward=reward)
    group.scores[execution] = Scored(outcome=outcome, attempt=attempt)
    _note_complete(state, group)


def _seal(state: JobGroups, execution: str) -> None:
    group = state.group_of.get(execution)
    if group is not None:
        group.sealed.add(execution)
        _note_complete(state, group)
    elif execution not in state.heldout:
        state.sealed_early.add(execution)


def _quarantine(state: JobGroups, sequence: int, body: ExecutionQuarantined) -> None:
    """Its seal may be what is damaged, so nobody waits for it: none of its calls is trained."""
    group = state.groups[body.group]
    group.quarantined[body.execution] = body.error
    group.last_sequence = sequence
    _seal(state, body.execution)


def _end(state: JobGroups, execution: str, *, by_itself: bool) -> None:
    group = state.group_of.get(execution)
    if group is not None and execution not in group.ended:
        group.ended[execution] = by_itself
        _note_complete(state, group)


def _never_start(state: JobGroups, queued: tuple[str, ...]) -> None:
    """Nothing of them is scored by anybody, and nothing called that could be sealed. So it is of an
    execution whose own facts are lost: which of them did come does not matter."""
    for execution in queued:
        _end(state, execution, by_itself=False)
        _score(state, execution, "excluded", None, None)
        _seal(state, execution)


def _drop(state: JobGroups, name: str) -> None:
    """Void for a group that a batch has claimed, as in the scheduler's own fold."""
    group = state.groups[name]
    if group.dropped or group.batch is not None:
        return
    group.dropped = True
    _leave_buffer(state, group)
    state.complete.pop(name, None)


def _leave_buffer(state: JobGroups, group: Group) -> None:
    state.drawable.pop(group.group, None)
    state.undrawn[group.version] -= 1
    if not state.undrawn[group.version]:
        del state.undrawn[group.version]


def _note_complete(state: JobGroups, group: Group) -> None:
    if group.ready is None and not group.dropped and group.complete:
        state.complete[group.group] = group


def _ready(state: JobGroups, sequence: int, body: GroupReady) -> None:
    group = state.groups[body.group]
    group.ready, group.last_sequence = body, sequence
    state.complete.pop(group.group, None)
    if not group.dropped:
        state.drawable[group.group] = group


def _claim(state: JobGroups, sequence: int, body: GroupClaimed) -> None:
    group = state.groups[body.group]
    group.last_sequence = sequence
    batch = state.batch
    if batch is None or batch.batch != body.batch or batch.all_drawn:
        return
    if group.batch is not None or group.dropped:
        return
    group.batch = batch.batch
    batch.groups.append(group)
    _leave_buffer(state, group)


def _core_leaves(state: JobGroups, cell: int) -> None:
    """As in the scheduler's own fold: what the core still says of the open batch is void."""
    state.orphaned |= state.batch is not None and state.order[:1] == (cell,)


def _restore(state: JobGroups, returned: tuple[str, ...]) -> None:
    """The open batch is void; its groups and those the scheduler names lie in the buffer again."""
    open_groups = () if state.batch is None else state.batch.groups
    for group in (*open_groups, *(state.groups[name] for name in returned)):
        if group.batch is not None:
            state.undrawn[group.version] += 1
        group.batch = None
        if group.ready is not None and not group.dropped:
            state.drawable[group.group] = group
    state.batch, state.orphaned = None, False


def _evolve_batch(state: JobGroups, sequence: int, body: Body) -> None:
    if isinstance(body, BatchOpened):
        state.batch = Batch(
            batch=body.batch,
            num_groups=body.num_groups,
            version=body.version,
            lineage=body.lineage,
        )
    batch = state.batch
    if batch is None or getattr(body, "batch", None) != batch.batch:
        return
    match body:
        case BatchJoined(cell=cell):
            batch.cells.add(cell)
        case MicroStepClaimed(index=index, cell=cell):
            batch.claims[index] = cell
        case EpochFenced():
            gone = {*body.lost, *body.dismissed}
            batch.cells -= gone
            batch.claims = {i: cell for i, cell in batch.claims.items() if cell not in gone}
        case MicroStepEmitted():
            batch.emitted.update(body.executions)
            batch.num_micro_steps += 1
            batch.num_targets += body.num_targets
            batch.num_admitted_targets += body.num_admitted_targets or body.num_targets
            batch.num_paths_too_long += body.num_paths_too_long
            batch.last_sequence = sequence
        case StreamClosed():
            batch.closed, batch.last_sequence = True, sequence
        case StepCompleted() if not state.orphaned:
            state.batch = None
