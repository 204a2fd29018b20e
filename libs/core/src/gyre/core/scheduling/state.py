"""What the scheduler knows of one job, rebuilt by folding the log. Carriers only.

`evolve` mutates these objects and nobody else does; folding one event is O(1) in the job's size.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from gyre.contracts.job import JobSpec

Phase = Literal["booting", "heldout_before", "training", "heldout_after"]
Role = Literal[
    "booting",
    "rollout",
    "to_training",
    "training",
    "to_rollout",
    "lost",
    "released",
    "offline",
]

# Roles that something must come out of in time; `deadlines` says in how much.
_PASSING: frozenset[Role] = frozenset({"booting", "to_training", "to_rollout"})
# The cell is none of the job's any more; offline: its agent has said that nothing of it runs.
_GONE: frozenset[Role] = frozenset({"lost", "released", "offline"})


@dataclass(slots=True, kw_only=True)
class Counters:
    """Executions, cumulative. dispatched: d, started: p, terminated: f, ordered: start orders."""

    dispatched: int = 0
    ordered: int = 0
    started: int = 0
    terminated: int = 0

    @property
    def waterlevel(self) -> int:
        """w = d - f."""
        return self.dispatched - self.terminated


@dataclass(slots=True, kw_only=True)
class Queued:
    execution: str
    group: str
    task: str
    seed: int


@dataclass(slots=True, kw_only=True)
class Cell:
    """index: place in the job's order, 0 is the core; `cell`: its number in the cluster.
    pool: it only ever serves; its index goes on behind the elastic cells'.

    place: its number in the job file, elastic cells first, whatever becomes of the others.

    executions: routed here and not terminated. num_trainer_losses: since the job's last step.
    in_world: epoch its trainer last joined, 0 if it left.
    since: the scheduler's clock when it was set on the way that its role names, None where nobody
    has said. silent: its agent is. served: (lineage, version) that its engine has confirmed.
    num_lost: how often this job has lost it.
    """

    index: int
    cell: int
    capacity: int
    pool: bool = False
    place: int = 0
    role: Role = "booting"
    since: float | None = None
    silent: bool = False
    engine_up: bool = False
    served: tuple[int, int] | None = None
    num_lost: int = 0
    executions: dict[str, None] = field(default_factory=dict)
    trainer_up: bool = False
    in_world: int = 0
    num_boot_failures: int = 0
    num_trainer_losses: int = 0
    last_error: str = ""

    @property
    def serving(self) -> bool:
        return self.role == "rollout"

    @property
    def gone(self) -> bool:
        """It left the job: what its agent still says of it is void."""
        return self.role in _GONE

    @property
    def free_slots(self) -> int:
        return self.capacity - len(self.executions)


@dataclass(slots=True, kw_only=True)
class Group:
    """version: v_d. claimed_version: v_t of the step that drew it, None while unclaimed.

    executions: all N'. num_done: those that ended by themselves; num_ended: with them those that
    were ended, broke, or never will start. dropped: left the job untrained, another came for it.
    """

    group: str
    version: int
    task: str = ""
    executions: tuple[str, ...] = ()
    ready: bool = False
    batch: str | None = None
    claimed_version: int | None = None
    num_done: int = 0
    num_ended: int = 0
    dropped: bool = False


@dataclass(slots=True, kw_only=True)
class Lengths:
    """Executions that ended by themselves: their number, and the sum of ln(seconds)."""

    num: int = 0
    sum_log_s: float = 0.0

    @property
    def mean_log_s(self) -> float:
        """Mean of ln(seconds), 0 when there is none."""
        return self.sum_log_s / self.num if self.num else 0.0

    def add(self, duration_s: float) -> None:
        self.num += 1
        # What took no measurable time is a millisecond long: a logarithm has no zero.
        self.sum_log_s += math.log(max(duration_s, 1e-3))


@dataclass(slots=True, kw_only=True)
class Batch:
    """owners: micro-step -> (cell, epoch). joined: cells that hold the frozen weights.

    fence_due: joined cells whose trainer died. reopen_due: a joined cell lives but lost its world.
    fenced_epoch: the last epoch that was fenced in this batch, 0 if none; no window closes in it.
    """

    batch: str
    step: int
    version: int
    num_claimed_groups: int = 0
    num_micro_steps: int | None = None
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    joined: dict[int, None] = field(default_factory=dict)
    dismissed: set[int] = field(default_factory=set)
    members: tuple[int, ...] | None = None
    fence_due: tuple[int, ...] = ()
    reopen_due: bool = False
    fenced_epoch: int = 0

    @property
    def all_claimed(self) -> bool:
        """The stream is closed and every micro-step has an owner whose epoch stands."""
        return self.num_micro_steps is not None and len(self.owners) == self.num_micro_steps


@dataclass(slots=True, kw_only=True)
class Burst:
    """steps [first_step, first_step + num_steps). ended: no further step; awaiting publication.
    since: the scheduler's clock when it ended, or when a lost core was restored after that."""

    burst: int
    first_step: int
    num_steps: int
    ended: bool = False
    since: float = 0.0
    core_stays: bool = False

    def holds(self, step: int) -> bool:
        return self.first_step <= step < self.first_step + self.num_steps


@dataclass(slots=True, kw_only=True)
class Execution:
    group: str
    kind: Literal["training", "heldout"]
    cell: int | None = None
    started: bool = False
    terminated: bool = False
    scored: bool = False


@dataclass(slots=True, kw_only=True)
class JobState:
    """One job. sequence: stream sequence of the last fact folded, of whichever writer.

    cells: elastic and pool cells by number. order: the elastic ones, core first. pool: the others.
    serving_capacity: C_R of eq. (1), kept up by every change of a role, so that reading it is O(1).

    world_stale: a cell of the world left it since it was formed. num_losses: engines and trainers
    of the job's cells that ever died. released: cells that somebody wants back, never taken again.
    last_loss: the cell that was lost last, and why. core_lost: weights newer than the durable
    checkpoint are gone, or the core is another cell: nothing trains before `restored`.
    paused: nothing new begins. drain_requested: why the job ends after the burst it is in.
    cancelled_sent, drained_sent: `executions_cancelled` is in the log, for the one or the other.
    unclaimed: v_d -> groups that no batch has claimed, ready or not, dropped ones left out.
    surplus_due: groups with N done and others unfinished. num_replacements_due: groups dropped
    since the last dispatch, for which the next one sends others.

    settled: the job is over, and its groups and executions are let go (`cluster`); their mean
    staleness stays as settled_staleness.

    Derived, so that a decision builds no lists: in_order, in_pool and everyone are the cells of
    `order`, of `pool` and of both (`seat`); living: the elastic cells whose trainer is up
    (`set_trainer`); transitioning: the cell on its way into training, of which there is at most one
    (`set_role`); awaited: cells that must come out of their role in time, or whose agent is silent.
    """

    job: str = ""
    spec: JobSpec | None = None
    train_tasks: tuple[str, ...] = ()
    heldout_tasks: tuple[str, ...] = ()
    status: Literal["unknown", "queued", "running", "succeeded", "cancelled", "failed"] = "unknown"
    reason: str = ""
    cancel_requested: str | None = None
    cancelled_sent: bool = False
    paused: bool = False
    drain_requested: str | None = None
    drained_sent: bool = False
    phase: Phase = "booting"
    sequence: int = 0

    cells: dict[int, Cell] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    pool: tuple[int, ...] = ()
    serving_capacity: int = 0
    epoch: int = 0
    world: tuple[int, ...] = ()
    world_stale: bool = False
    num_losses: int = 0
    last_loss: str = ""
    released: dict[int, None] = field(default_factory=dict)

    lineage: int = 1
    version: int = 0
    published: int = 0
    num_steps_done: int = 0
    durable_version: int = 0
    durable_path: str = ""
    core_lost: bool = False
    num_restores: int = 0

    training: Counters = field(default_factory=Counters)
    heldout: Counters = field(default_factory=Counters)
    num_heldout_scored: int = 0
    queue: deque[Queued] = field(default_factory=deque)
    heldout_queue: deque[Queued] = field(default_factory=deque)
    num_publications: int = 0
    measurement_due: bool = False
    executions: dict[str, Execution] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    num_ready_unclaimed: int = 0
    unclaimed: dict[int, dict[str, None]] = field(default_factory=dict)
    surplus_due: dict[str, None] = field(default_factory=dict)
    lengths: dict[str, Lengths] = field(default_factory=dict)
    all_lengths: Lengths = field(default_factory=Lengths)
    num_groups_dispatched: int = 0
    num_groups_dropped: int = 0
    num_replacements_due: int = 0
    dispatch_due: bool = False

    burst: Burst | None = None
    num_bursts: int = 0
    batch: Batch | None = None
    supply_since: float | None = None
    settled: bool = False
    settled_staleness: float | None = None

    in_order: tuple[Cell, ...] = field(default=(), init=False, repr=False, compare=False)
    in_pool: tuple[Cell, ...] = field(default=(), init=False, repr=False, compare=False)
    everyone: tuple[Cell, ...] = field(default=(), init=False, repr=False, compare=False)
    living: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    transitioning: Cell | None = field(default=None, init=False, repr=False, compare=False)
    awaited: dict[int, None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def required_spec(self) -> JobSpec:
        if self.spec is None:
            raise ValueError(f"job {self.job}: no job_submitted folded yet")
        return self.spec

    @property
    def finished(self) -> bool:
        return self.status in ("succeeded", "cancelled", "failed")

    @property
    def core(self) -> Cell:
        return self.in_order[0]

    def mean_log_s(self, task: str, otherwise: float) -> float:
        """Mean of ln(seconds) over the task's training executions that ended by themselves."""
        seen = self.lengths.get(task)
        return otherwise if seen is None else seen.mean_log_s

    def leave_buffer(self, group: Group) -> None:
        """The group is claimed or dropped. Its version goes with its last group."""
        same = self.unclaimed.get(group.version, {})
        same.pop(group.group, None)
        if not same:
            self.unclaimed.pop(group.version, None)

    def present(self, number: int) -> Cell | None:
        """The job's cell of this number, None when it is none of the job's, or no longer."""
        cell = self.cells.get(number)
        return None if cell is None or cell.gone else cell

    def seat(self, order: tuple[int, ...], pool: tuple[int, ...]) -> None:
        """The one place where it changes which cells the job has, and with it their indices.
        `cells` holds all of them by now."""
        self.order, self.pool = order, pool
        self.derive()
        for index, cell in enumerate(self.everyone):
            cell.index = index

    def derive(self) -> None:
        """Make the derived fields again from the others."""
        self.everyone = tuple(self.cells[number] for number in (*self.order, *self.pool))
        self.in_order = self.everyone[: len(self.order)]
        self.in_pool = self.everyone[len(self.order) :]
        self.living = tuple(cell.cell for cell in self.in_order if cell.trainer_up)
        on_the_way = (cell for cell in self.everyone if cell.role == "to_training")
        self.transitioning = next(on_the_way, None)
        self.awaited = {c.cell: None for c in self.everyone if c.role in _PASSING or c.silent}

    def set_trainer(self, cell: Cell, *, up: bool) -> None:
        """The one place where a cell's trainer comes up or is gone."""
        cell.trainer_up = up
        self.living = tuple(cell.cell for cell in self.in_order if cell.trainer_up)

    def set_role(self, cell: Cell, role: Role, since: float | None = None) -> None:
        """The one place where a cell's role changes, and with it C_R and who is on its way."""
        cell.since = since
        if role in _PASSING:
            self.awaited[cell.cell] = None
        elif not cell.silent:
            self.awaited.pop(cell.cell, None)
        self.serving_capacity -= cell.capacity if cell.role == "rollout" else 0
        cell.role = role
        self.serving_capacity += cell.capacity if role == "rollout" else 0
        if role == "to_training":
            self.transitioning = cell
        elif self.transitioning is cell:
            self.transitioning = None
