"""What the trajectory service knows of one job, rebuilt by folding the log. Carriers only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gyre.contracts.events.groups import GroupReady
from gyre.contracts.job import JobSpec
from gyre.core.advantage import Outcome
from gyre.core.groups.keep import Keep, drawn, first_finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """An execution's final disposition. attempt: the scored one, None when none was."""

    outcome: Outcome
    attempt: int | None


@dataclass(slots=True, kw_only=True)
class Group:
    """order: place among the job's dispatched groups. last_sequence: of the group's subject.
    batch: the batch that claimed it, None while it lies in the buffer.

    num_kept: N, of the N' in `executions`. sealed: whose calls are over, by their seal or because
    they are in quarantine. ended: execution -> whether it ended by itself, in the order of the log.
    dropped: never to be drawn, another group came for it. quarantined: execution -> why the records
    of its calls cannot be trained.
    """

    group: str
    task: str
    executions: tuple[str, ...]
    version: int
    lineage: int
    order: int
    num_kept: int
    keep: Keep
    scores: dict[str, Scored] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)
    ended: dict[str, bool] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    dropped: bool = False
    ready: GroupReady | None = None
    batch: str | None = None
    last_sequence: int = 0

    @property
    def oversampled(self) -> bool:
        return self.num_kept < len(self.executions)

    @property
    def complete(self) -> bool:
        """Each of the kept has its final disposition and its calls are sealed. For the surplus of
        `first_finished` nobody waits."""
        if not self.oversampled or self.keep == "drawn":
            return len(self.scores) == len(self.sealed) == len(self.executions)
        kept = first_finished(self.ended, len(self.executions), self.num_kept)
        return kept is not None and all(e in self.scores and e in self.sealed for e in kept)

    def kept(self, seed: int) -> frozenset[str]:
        """The executions that count, of a complete group. seed: the job's."""
        if not self.oversampled:
            return frozenset(self.executions)
        if self.keep == "drawn":
            names = drawn(
                self.executions,
                self.num_kept,
                seed=seed,
                group=self.group,
                scored=lambda name: self.scores[name].outcome.in_baseline,
            )
            return frozenset(names)
        first = first_finished(self.ended, len(self.executions), self.num_kept)
        if first is None:
            raise ValueError(f"group {self.group}: which of its executions are kept is not known")
        return frozenset(first)


@dataclass(slots=True, kw_only=True)
class Batch:
    """The open batch. version: v_t. groups: claimed, in that order. claims: micro-step -> cell that
    holds it. num_admitted_targets, num_paths_too_long: what admission came to for the executions
    that are emitted. last_sequence: of the batch's stream subject."""

    batch: str
    num_groups: int
    version: int
    lineage: int
    groups: list[Group] = field(default_factory=list)
    emitted: set[str] = field(default_factory=set)
    num_micro_steps: int = 0
    num_targets: int = 0
    num_admitted_targets: int = 0
    num_paths_too_long: int = 0
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
    complete: groups that wait for their `group_ready`. drawable: ready and in no batch.
    undrawn: v_d -> number of groups in no batch, ready or not, dropped ones left out.
    order: the job's elastic cells, core first. orphaned: the core left the open batch, whose step
    does not count any more; `restored` returns its groups."""

    job: str
    spec: JobSpec | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    group_of: dict[str, Group] = field(default_factory=dict)
    heldout: set[str] = field(default_factory=set)
    sealed_early: set[str] = field(default_factory=set)
    complete: dict[str, Group] = field(default_factory=dict)
    drawable: dict[str, Group] = field(default_factory=dict)
    undrawn: Counter[int] = field(default_factory=Counter)
    batch: Batch | None = None
    order: tuple[int, ...] = ()
    orphaned: bool = False
    finished: bool = False

    @property
    def required_spec(self) -> JobSpec:
        """The job's spec. Raises LookupError before `job_submitted` was folded."""
        if self.spec is None:
            raise LookupError(f"job {self.job} was not submitted in this log")
        return self.spec

    def trains(self, execution: str) -> bool:
        """Its calls may still be trained: it is no held-out execution, and its group, if known, is
        neither dropped nor ready (what is kept of a ready group is sealed)."""
        if execution in self.heldout:
            return False
        group = self.group_of.get(execution)
        return group is None or (group.ready is None and not group.dropped)
