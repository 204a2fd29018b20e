"""What the scheduler knows of one job, rebuilt by folding the log.

`evolve` mutates this object and nobody else does; folding one event is O(1) in the job's size.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from gyre.contracts.job import JobSpec
from gyre.core.scheduling.parts import (
    PASSING,
    Batch,
    Burst,
    Cell,
    Counters,
    Execution,
    Group,
    Lengths,
    Phase,
    Queued,
    Role,
)

__all__ = [
    "Batch",
    "Burst",
    "Cell",
    "Counters",
    "Execution",
    "Group",
    "JobState",
    "Lengths",
    "Phase",
    "Queued",
    "Role",
]


@dataclass(slots=True, kw_only=True)
class JobState:
    """One job. sequence: stream sequence of the last fact folded, of whichever writer. experts: its
    model is a mixture of them.

    cells: elastic and pool cells by number. order: the elastic ones, core first. pool: the others.
    serving_capacity: C_R of eq. (1), kept up by every change of a role, so that reading it is O(1).

    world_stale: a cell of the world left it since it was formed. num_losses: engines and trainers
    of the job's cells that ever died. released: cells that somebody wants back, never taken again.
    last_loss: the cell that was lost last, and why. core_lost: weights newer than the durable
    checkpoint are gone, or the core is another cell: nothing trains before `restored`.
    num_skipped_in_a_row: steps since the last one whose update was applied; last_skip: why.
    paused: nothing new begins. pause_reason: why, "" while it is not. save_failed: the core could
    not save what it holds, and tries again when the job is resumed.
    drain_requested: why the job ends after the burst it is in.
    cancelled_sent, drained_sent: `executions_cancelled` is in the log, for the one or the other.
    unclaimed: v_d -> groups that no batch has claimed, ready or not, dropped ones left out.
    surplus_due: groups with N done and others unfinished. num_replacements_due: groups dropped
    since the last dispatch, for which the next one sends others.
    queue, heldout_queue: dispatched and not ordered. measurement_due: a publication's held-out
    measurement was not dispatched yet. lengths: of each task's executions, as `gyre+` learns them;
    all_lengths: of all of them.

    num_lost_facts: of the job, that nobody can read. lost_fact: which of them the job ends at,
    because it is none of an execution's own; what follows is not folded, "" while there is none.

    settled: the job is over, and its groups and executions are let go (`cluster`); their mean
    staleness stays as settled_staleness.

    Derived, so that a decision builds no lists: in_order, in_pool and everyone are the cells of
    `order`, of `pool` and of both (`seat`); living: the elastic cells whose trainer is up
    (`set_trainer`); transitioning: the cell on its way into training, of which there is at most one
    (`set_role`); awaited: cells that must come out of their role in time, or whose agent is silent.
    """

    job: str = ""
    spec: JobSpec | None = None
    experts: bool = False
    train_tasks: tuple[str, ...] = ()
    heldout_tasks: tuple[str, ...] = ()
    status: Literal["unknown", "queued", "running", "succeeded", "cancelled", "failed"] = "unknown"
    reason: str = ""
    cancel_requested: str | None = None
    cancelled_sent: bool = False
    paused: bool = False
    pause_reason: str = ""
    save_failed: bool = False
    drain_requested: str | None = None
    drained_sent: bool = False
    phase: Phase = "booting"
    sequence: int = 0
    num_lost_facts: int = 0
    lost_fact: str = ""

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
    num_skipped_in_a_row: int = 0
    last_skip: str = ""
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
        self.awaited = {c.cell: None for c in self.everyone if c.role in PASSING or c.silent}

    def set_trainer(self, cell: Cell, *, up: bool) -> None:
        """The one place where a cell's trainer comes up or is gone."""
        cell.trainer_up = up
        self.living = tuple(cell.cell for cell in self.in_order if cell.trainer_up)

    def set_role(self, cell: Cell, role: Role, since: float | None = None) -> None:
        """The one place where a cell's role changes, and with it C_R and who is on its way."""
        cell.since = since
        if role in PASSING:
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
