"""What the trajectory service knows of one job, rebuilt by folding the log. Carriers only."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.contracts.events.groups import GroupReady
from gyre.contracts.job import JobSpec
from gyre.core.advantage import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """An execution's final disposition. attempt: the scored one, None when none was."""

    outcome: Outcome
    attempt: int | None


@dataclass(slots=True, kw_only=True)
class Group:
    """order: place among the job's dispatched groups. last_sequence: of the group's subject.
    batch: the batch that claimed it, None while it lies in the buffer."""

    group: str
    task: str
    executions: tuple[str, ...]
    version: int
    lineage: int
    order: int
    scores: dict[str, Scored] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)
    ready: GroupReady | None = None
    batch: str | None = None
    last_sequence: int = 0

    @property
    def complete(self) -> bool:
        return len(self.scores) == len(self.sealed) == len(self.executions)


@dataclass(slots=True, kw_only=True)
class Batch:
    """The open batch. groups: claimed, in that order. claims: micro-step -> cell that holds it.
    last_sequence: of the batch's stream subject."""

    batch: str
    num_groups: int
    lineage: int
    groups: list[Group] = field(default_factory=list)
    emitted: set[str] = field(default_factory=set)
    num_micro_steps: int = 0
    num_targets: int = 0
    claims: dict[int, int] = field(default_factory=dict)
    cells: set[int] = field(default_factory=set)
    closed: bool = False
    last_sequence: int = 0

    @property
    def all_drawn(self) -> bool:
        return len(self.groups) >= self.num_groups

    @property
    def num_queued(self) -> int:
        """Micro-steps emitted and claimed by no living cell."""
        return self.num_micro_steps - len(self.claims)

    @property
    def low_mark(self) -> int:
        """One micro-step per training cell: enough that none waits, little enough that ready groups
        stay unclaimed, which is what the supply check of a transition counts."""
        return max(1, len(self.cells))


@dataclass(slots=True, kw_only=True)
class JobGroups:
    """group_of: the group of each training execution. heldout: executions that are never trained.
    sealed_early: seals whose execution's dispatch was not folded yet: the two streams race.
    complete: groups that wait for their `group_ready`. drawable: ready and in no batch."""

    job: str
    spec: JobSpec | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    group_of: dict[str, Group] = field(default_factory=dict)
    heldout: set[str] = field(default_factory=set)
    sealed_early: set[str] = field(default_factory=set)
    complete: dict[str, Group] = field(default_factory=dict)
    drawable: dict[str, Group] = field(default_factory=dict)
    batch: Batch | None = None
    finished: bool = False

    @property
    def required_spec(self) -> JobSpec:
        """The job's spec. Raises LookupError before `job_submitted` was folded."""
        if self.spec is None:
            raise LookupError(f"job {self.job} was not submitted in this log")
        return self.spec
