"""What the scheduler says, on facts.<job>.sched (and epoch_fenced on the batch's claims)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from gyre.contracts.envelope import Body, Decision, Part
from gyre.contracts.job import JobSpec
from gyre.contracts.registry import event
from gyre.contracts.upcasters import upcaster


class GroupPlan(Part):
    """One task sampled N times. executions: the N execution ids, in order."""

    group: str
    task: str
    executions: tuple[str, ...]


class StartOrder(Part):
    """Reserves a slot on `cell` for `execution` until it terminates. seed: for the sampler."""

    execution: str
    group: str
    task: str
    cell: int
    seed: int


class Move(Part):
    """An execution's calls go to another cell from here on; its harness notices nothing."""

    execution: str
    source: int
    destination: int


@event
class JobSubmitted(Body):
    """train_tasks, heldout_tasks: task names in the order they are dispatched. experts: the model
    is a mixture of them."""

    TYPE: ClassVar[str] = "job_submitted"
    VERSION: ClassVar[int] = 2
    spec: JobSpec
    train_tasks: tuple[str, ...]
    heldout_tasks: tuple[str, ...]
    experts: bool = False


@upcaster("job_submitted", 1)
def _steps_that_are_not_applied_had_no_bound(body: dict[str, Any]) -> dict[str, Any]:
    """A job whose spec does not say `max_skipped_steps` went on however many there were."""
    spec = {**body["spec"]}
    spec["objective"] = {"max_skipped_steps": None, **spec.get("objective", {})}
    return {**body, "spec": spec}


@event
class AgentSilent(Body):
    """The scheduler has not heard the cell's agent since `last_heard`, for `silence_deadline_s`."""

    TYPE: ClassVar[str] = "agent_silent"
    cell: int
    last_heard: float


@event
class JobStarted(Decision):
    """The job holds these cells from now on, cells[0] is the core; agents boot engine, trainer.
    pool: further cells, which only ever serve."""

    TYPE: ClassVar[str] = "job_started"
    cells: tuple[int, ...]
    lineage: int
    pool: tuple[int, ...] = ()


@event
class WorldFormed(Decision):
    """The trainers of `cells` make one process group world, ranks in this order, under `epoch`."""

    TYPE: ClassVar[str] = "world_formed"
    epoch: int
    cells: tuple[int, ...]


@event
class PhaseStarted(Decision):
    TYPE: ClassVar[str] = "phase_started"
    phase: Literal["heldout_before", "training", "heldout_after"]


@event
class Dispatched(Decision):
    """Groups enter the queue: d rises by their executions. version: v_d, the published version."""

    TYPE: ClassVar[str] = "dispatched"
    kind: Literal["training", "heldout"]
    groups: tuple[GroupPlan, ...]
    version: int
    lineage: int


@event
class StartOrdered(Decision):
    """free = C_R - (ordered - f) falls by one for each order; p rises when its `started` comes."""

    TYPE: ClassVar[str] = "start_ordered"
    orders: tuple[StartOrder, ...]


@event
class SupplyTimerStarted(Decision):
    """Ready, unclaimed groups (capped by what the batch needs) reached rho_min B."""

    TYPE: ClassVar[str] = "supply_timer_started"
    ready: int
    needed: int


@event
class SupplyTimerStopped(Decision):
    """They fell below rho_min B before tau had passed."""

    TYPE: ClassVar[str] = "supply_timer_stopped"
    ready: int
    needed: int


@event
class TransitionStarted(Decision):
    """A cell changes role. Its capacity leaves the ledger here and comes back with `role_changed`.

    moves: where the executions routed to this cell go. waterlevel, capacity_after: the two sides of
    eq. (2) at the decision, in executions. batch: the batch it joins, None when it goes back.
    """

    TYPE: ClassVar[str] = "transition_started"
    cell: int
    to: Literal["training", "rollout"]
    moves: tuple[Move, ...] = ()
    waterlevel: int
    capacity_after: int
    batch: str | None = None


@event
class BurstStarted(Decision):
    TYPE: ClassVar[str] = "burst_started"
    burst: int
    first_step: int
    num_steps: int


@event
class BatchOpened(Decision):
    """step: index of the optimizer step; version: v_t, the steps applied in this lineage."""

    TYPE: ClassVar[str] = "batch_opened"
    batch: str
    step: int
    version: int
    lineage: int
    num_groups: int


@event
class JoinWindowClosed(Decision):
    """These cells, a prefix, reduce their gradients. Selects the process group."""

    TYPE: ClassVar[str] = "join_window_closed"
    batch: str
    epoch: int
    members: tuple[int, ...]
    final: bool


@event
class BurstEnded(Decision):
    """waterlevel and capacity: the two sides of eq. (3), in executions. staying_satellites: cells
    that go on training besides the core, under policies that keep some."""

    TYPE: ClassVar[str] = "burst_ended"
    burst: int
    core_stays: bool
    waterlevel: int
    next_dispatch: int
    capacity_without_core: int
    ready: int
    staying_satellites: tuple[int, ...] = ()


@event
class EpochFenced(Body):
    """On the batch's claims: `lost` cells own nothing from here, others claim their micro-steps.

    dismissed: living cells above a gap, which leave the batch too. members: who goes on.
    """

    TYPE: ClassVar[str] = "epoch_fenced"
    batch: str
    epoch: int
    lost: tuple[int, ...]
    dismissed: tuple[int, ...]
    members: tuple[int, ...]


@event
class CellWatched(Decision):
    """The cell must serve again; if it does not within the job's deadline it is lost. Written where
    no other decision says since when: after its engine died."""

    TYPE: ClassVar[str] = "cell_watched"
    cell: int


@event
class CellLost(Decision):
    """The compensation of a transition that missed its deadline, and of an agent that fell silent.
    The cell leaves the job. moves: where the executions routed to it go."""

    TYPE: ClassVar[str] = "cell_lost"
    cell: int
    moves: tuple[Move, ...] = ()
    reason: str


@event
class CellReleased(Decision):
    """The cell leaves the job in order; its agent ends both processes and says it is offline."""

    TYPE: ClassVar[str] = "cell_released"
    cell: int
    moves: tuple[Move, ...] = ()


@event
class CellJoined(Decision):
    """A free cell joins the running job as its last satellite; its agent boots engine, trainer."""

    TYPE: ClassVar[str] = "cell_joined"
    cell: int
    index: int


@event
class SurplusCancelled(Decision):
    """N of the group's N' are done: queued ones never start (p and f rise together), running ones
    are ended; both count as terminated and are never trained."""

    TYPE: ClassVar[str] = "surplus_cancelled"
    group: str
    queued: tuple[str, ...]
    running: tuple[str, ...]


@event
class GroupDropped(Decision):
    """The step would have passed `max_staleness`: the group leaves the job untrained and another is
    dispatched for it. staleness: what it would have had. queued, running: its unfinished."""

    TYPE: ClassVar[str] = "group_dropped"
    group: str
    staleness: int
    queued: tuple[str, ...]
    running: tuple[str, ...]


@event
class Restored(Decision):
    """The core came back from a durable checkpoint; claims made since are void."""

    TYPE: ClassVar[str] = "restored"
    lineage: int
    version: int
    checkpoint: str
    returned_groups: tuple[str, ...]


@event
class ExecutionsCancelled(Decision):
    """Queued executions that never start (p and f rise together), and running ones to be ended."""

    TYPE: ClassVar[str] = "executions_cancelled"
    queued: tuple[str, ...]
    running: tuple[str, ...]
    reason: str


@event
class JobFinished(Decision):
    TYPE: ClassVar[str] = "job_finished"
    status: Literal["succeeded", "cancelled", "failed"]
    reason: str
