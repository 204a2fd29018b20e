"""What the scheduler knows of one job, rebuilt by folding the log. Carriers only.

`evolve` mutates these objects and nobody else does; folding one event is O(1) in the job's size.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from gyre.contracts.job import JobSpec

Phase = Literal["booting", "heldout_before", "training", "heldout_after"]
Role = Literal["booting", "rollout", "to_training", "training", "to_rollout", "lost", "offline"]


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

    executions: routed here and not terminated. num_trainer_losses: since the job's last step.
    in_world: epoch its trainer last joined, 0 if it left.
    """

    index: int
    cell: int
    capacity: int
    pool: bool = False
    role: Role = "booting"
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
    def free_slots(self) -> int:
        return self.capacity - len(self.executions)


@dataclass(slots=True, kw_only=True)
class Group:
    """version: v_d. claimed_version: v_t of the step that drew it, None while unclaimed."""

    group: str
    version: int
    ready: bool = False
    batch: str | None = None
    claimed_version: int | None = None
    num_executions: int = 0


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
    """steps [first_step, first_step + num_steps). ended: no further step; awaiting publication."""

    burst: int
    first_step: int
    num_steps: int
    ended: bool = False
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

    world_stale: a cell of the world left it since it was formed.
    """

    job: str = ""
    spec: JobSpec | None = None
    train_tasks: tuple[str, ...] = ()
    heldout_tasks: tuple[str, ...] = ()
    status: Literal["unknown", "queued", "running", "succeeded", "cancelled", "failed"] = "unknown"
    reason: str = ""
    cancel_requested: str | None = None
    cancelled_sent: bool = False
    phase: Phase = "booting"
    sequence: int = 0
    sched_sequence: int = 0

    cells: dict[int, Cell] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    pool: tuple[int, ...] = ()
    serving_capacity: int = 0
    epoch: int = 0
    world: tuple[int, ...] = ()
    world_stale: bool = False

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
    executions: dict[str, Execution] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    num_ready_unclaimed: int = 0
    num_groups_dispatched: int = 0
    dispatch_due: bool = False

    burst: Burst | None = None
    num_bursts: int = 0
    batch: Batch | None = None
    supply_since: float | None = None

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
        return self.cells[self.order[0]]

    @property
    def in_order(self) -> list[Cell]:
        """The job's elastic cells, core first."""
        return [self.cells[number] for number in self.order]

    @property
    def everyone(self) -> list[Cell]:
        """Elastic cells, core first, then the pool's."""
        return [self.cells[number] for number in (*self.order, *self.pool)]

    @property
    def in_pool(self) -> list[Cell]:
        return [self.cells[number] for number in self.pool]

    def set_role(self, cell: Cell, role: Role) -> None:
        """The one place where a cell's role changes, and with it C_R."""
        self.serving_capacity -= cell.capacity if cell.serving else 0
        cell.role = role
        self.serving_capacity += cell.capacity if cell.serving else 0

    @property
    def transitioning(self) -> Cell | None:
        """The cell on its way into training, of which there is at most one."""
        return next((c for c in self.cells.values() if c.role == "to_training"), None)
