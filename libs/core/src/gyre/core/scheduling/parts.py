"""What a job's state is made of: cells, groups, batches, bursts, executions. Carriers only;
`evolve` mutates them and nobody else does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

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
PASSING: frozenset[Role] = frozenset({"booting", "to_training", "to_rollout"})
# The cell is none of the job's any more; offline: its agent has said that nothing of it runs.
GONE: frozenset[Role] = frozenset({"lost", "released", "offline"})


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
        return self.role in GONE

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
    """lost: a fact of its own cannot be read: to the ledger it has ended, once it was ordered."""

    group: str
    kind: Literal["training", "heldout"]
    cell: int | None = None
    started: bool = False
    terminated: bool = False
    scored: bool = False
    lost: bool = False
