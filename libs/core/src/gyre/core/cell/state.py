"""What a cell's agent knows: from the log (`CellState`) and from its own processes (`Holdings`)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from gyre.contracts.job import JobSpec

Version = tuple[int, int]
"""(lineage, version): names one set of weights."""


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """A durable checkpoint: path of its directory and the checksum of its weights."""

    version: Version
    path: str
    checksum: str


@dataclass(slots=True, kw_only=True)
class Exposure:
    """Where the core serves weights, and how."""

    version: Version
    host: str
    port: int
    checksum: str
    transport: str = "tcp"


@dataclass(slots=True, kw_only=True)
class OpenBatch:
    """micro_steps: index -> blob digest. owners: index -> (cell, epoch), as the claims stand.

    claims_sequence: stream sequence of the last event on the claims subject, expected by a claim.
    fenced_epoch: the last epoch fenced in this batch; no window closes in it.
    """

    batch: str
    step: int
    version: Version
    micro_steps: dict[int, str] = field(default_factory=dict)
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    claims_sequence: int = 0
    joined: set[int] = field(default_factory=set)
    dismissed: set[int] = field(default_factory=set)
    members: tuple[int, ...] | None = None
    member_epoch: int = 0
    final: bool = False
    fenced_epoch: int = 0

    def unclaimed(self) -> list[int]:
        """Micro-steps that nobody owns, in order."""
        return sorted(self.micro_steps.keys() - self.owners.keys())

    def owned_by(self, cell: int) -> list[int]:
        return sorted(i for i, owner in self.owners.items() if owner[0] == cell)


@dataclass(slots=True, kw_only=True)
class CellState:
    """One cell's view of its job.

    cell: my number in the cluster. order: the job's elastic cells, core first.
    in_pool: I am none of them: I only ever serve, and run no trainer.
    place: my number among the cells that the job file describes, elastic cells first, then the
    pool's; a cell that joined later takes the lowest that was left free.
    members: all cells of the job. places: of the elastic ones. gone: the job lost or released me.
    orphaned: what was trained since the last checkpoint is given up; `restored` says what follows.
    others: running jobs that I have no part in, by id, so that I can join one in its middle.
    transition: a transition_started into training that my role_changed has not answered yet.
    switch, num_moved: the last one's log sequence, and how many executions it moved away from me.
    leaving: the burst ended and I go back to rollout, with weights of at least leave_version.
    trainers: cells whose trainer is up. ready: cells that wait to connect to the world.
    doomed: one of the world's trainers is dead or has lost it: nobody connects to it any more.
    left_epoch: the last world that my own trainer left, by its death or its peers'.
    restored: what the core must hold again after its loss. initial: names the job's own model.
    save_failed: what the core could not save, until the job is resumed.
    published_path: of the checkpoint that was published last, None for the job's own model.
    exposure, offered: where the core's trainer serves its weights to joiners, and the core's agent
    the durable checkpoint to engines.
    serving: what each cell's engine is said to hold.
    """

    cell: int
    specs: dict[str, JobSpec] = field(default_factory=dict)
    job: str | None = None
    spec: JobSpec | None = None
    order: tuple[int, ...] = ()
    in_pool: bool = False
    place: int = 0
    members: set[int] = field(default_factory=set)
    places: dict[int, int] = field(default_factory=dict)
    gone: bool = False
    orphaned: bool = False
    others: dict[str, CellState] = field(default_factory=dict)
    finished: bool = False
    role: str = "none"
    engine_reported: bool = False
    trainer_reported: bool = False
    transition: bool = False
    switch: int = 0
    num_moved: int = 0
    leaving: bool = False
    leave_version: Version = (1, 0)
    burst_over: bool = False
    core_stays: bool = False
    epoch: int = 0
    world: tuple[int, ...] = ()
    trainers: set[int] = field(default_factory=set)
    ready: set[int] = field(default_factory=set)
    doomed: bool = False
    left_epoch: int = 0
    initial: Version = (1, 0)
    version: Version = (1, 0)
    published: Version = (1, 0)
    checkpoint: Checkpoint | None = None
    restored: Version | None = None
    save_failed: Version | None = None
    published_path: str | None = None
    exposure: Exposure | None = None
    offered: Exposure | None = None
    batch: OpenBatch | None = None
    serving: dict[int, Version] = field(default_factory=dict)
    in_rollout: set[int] = field(default_factory=set)

    @property
    def is_core(self) -> bool:
        return bool(self.order) and self.order[0] == self.cell

    @property
    def durable(self) -> Version:
        """The newest version that a restart finds: the last checkpoint's, else the job's model."""
        return self.checkpoint.version if self.checkpoint is not None else self.initial

    @property
    def publishes_by_wire(self) -> bool:
        """Engines get checkpoints from the core's agent, not from a disk that all share."""
        return self.spec is not None and self.spec.weights.publication == "tcp"

    @property
    def required_spec(self) -> JobSpec:
        if self.spec is None:
            raise ValueError(f"cell {self.cell} has no job")
        return self.spec


@dataclass(slots=True, kw_only=True)
class Holdings:
    """What this agent's processes hold right now; never from the log.

    engine_version, trainer_version: weights they hold, None when the process is down.
    trained: micro-steps of `accumulating` that the trainer has taken in; it computes them before it
    finishes the batch.
    world_epoch: the world its trainer stands in, 0 for none.
    broken_epoch: a world that failed under us; nothing is tried in it again.
    finished: the (batch, epoch) whose reduction is behind us; the core says what came of it.
    missed: a batch whose weights could not be had, and how often until now.
    offered: the checkpoint that this agent serves to others.
    saving: weights whose checkpoint the trainer is writing while it goes on.
    """

    engine_version: Version | None = None
    engine_paused: bool = False
    trainer_version: Version | None = None
    world_epoch: int = 0
    broken_epoch: int | None = None
    accumulating: str | None = None
    trained: set[int] = field(default_factory=set)
    finished: tuple[str, int] | None = None
    exposed: Version | None = None
    offered: Version | None = None
    missed: tuple[str, int] | None = None
    saving: Version | None = None

    def num_missed(self, batch: str) -> int:
        """How often its weights could not be had."""
        return self.missed[1] if self.missed is not None and self.missed[0] == batch else 0

    def clear(self) -> None:
        """Both processes are gone."""
        fresh = Holdings()
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))
