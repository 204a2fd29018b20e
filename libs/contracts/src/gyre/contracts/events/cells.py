"""What cell agents say: on facts.cluster.cell.<cell> before a job, on facts.<job>.cell.<cell> in
one, and micro_step_claimed on facts.<job>.batch.<batch>.claims."""

from __future__ import annotations

from typing import ClassVar, Literal

from gyre.contracts.envelope import Body, Part
from gyre.contracts.registry import event

CellRole = Literal["rollout", "training", "offline"]


@event
class AgentOnline(Body):
    """An agent began its life: whatever an earlier one of this cell ran is gone."""

    TYPE: ClassVar[str] = "agent_online"
    cell: int
    incarnation: str
    host: str
    pid: int


@event
class RoleChanged(Body):
    """The cell is in this role now. rollout: engine ready with (lineage, version) at engine_url.

    duration_s: since the order. Process ids show that both processes outlive every change.
    """

    TYPE: ClassVar[str] = "role_changed"
    cell: int
    role: CellRole
    version: int
    lineage: int
    engine_url: str | None
    duration_s: float
    engine_pid: int | None = None
    trainer_pid: int | None = None


@event
class EngineLost(Body):
    TYPE: ClassVar[str] = "engine_lost"
    cell: int
    error: str


@event
class TrainerReady(Body):
    """The trainer process is up (again) and in no world."""

    TYPE: ClassVar[str] = "trainer_ready"
    cell: int
    pid: int


@event
class TrainerLost(Body):
    """The trainer process ended: whatever it had accumulated is gone."""

    TYPE: ClassVar[str] = "trainer_lost"
    cell: int
    error: str


@event
class WorldReady(Body):
    """The cell waits for the others of this world. They connect when all have said so: connecting
    blocks, and nobody shall block for one that died before it came."""

    TYPE: ClassVar[str] = "world_ready"
    cell: int
    epoch: int


@event
class WorldJoined(Body):
    """The trainer is connected to all others of this world."""

    TYPE: ClassVar[str] = "world_joined"
    cell: int
    epoch: int


@event
class WorldBroken(Body):
    """A collective of this epoch failed here though our trainer lives: a peer died in it or did not
    come in time. We left that world, and what we had accumulated in it is dropped."""

    TYPE: ClassVar[str] = "world_broken"
    cell: int
    epoch: int
    error: str


@event
class WeightsExposed(Body):
    """The core serves its weights of (lineage, version) to joiners at host:port."""

    TYPE: ClassVar[str] = "weights_exposed"
    cell: int
    version: int
    lineage: int
    host: str
    port: int
    checksum: str


@event
class BatchJoined(Body):
    """The cell holds the batch's frozen weights and claims from now on (core and satellites)."""

    TYPE: ClassVar[str] = "batch_joined"
    cell: int
    batch: str
    version: int
    lineage: int


@event
class MicroStepClaimed(Body):
    """This cell alone trains the micro-step, while `epoch` is not fenced."""

    TYPE: ClassVar[str] = "micro_step_claimed"
    batch: str
    index: int
    cell: int
    epoch: int


class MicroStepOwner(Part):
    index: int
    cell: int
    epoch: int


class StepStatistics(Part):
    """loss: eq. (6) summed over the batch. clip_fraction: share of executions with m_i = 0."""

    loss: float
    grad_norm: float
    lr: float
    clip_fraction: float
    mean_ratio: float
    mean_abs_logprob_diff: float
    max_abs_logprob_diff: float
    entropy: float
    num_targets: int
    num_tokens: int
    seconds: float


# Of a step where nothing is computed, in simulated trainers: the policy stays what it was.
NO_STATISTICS = StepStatistics(
    loss=0.0,
    grad_norm=0.0,
    lr=0.0,
    clip_fraction=0.0,
    mean_ratio=1.0,
    mean_abs_logprob_diff=0.0,
    max_abs_logprob_diff=0.0,
    entropy=0.0,
    num_targets=1,
    num_tokens=1,
    seconds=0.0,
)


@event
class StepCompleted(Body):
    """One optimizer update was applied on the core. version: after it. skipped: a non-finite
    gradient, the weights are unchanged but the step counts."""

    TYPE: ClassVar[str] = "step_completed"
    batch: str
    step: int
    version: int
    lineage: int
    epoch: int
    members: tuple[int, ...]
    micro_steps: tuple[MicroStepOwner, ...]
    statistics: StepStatistics
    skipped: bool = False


@event
class CheckpointSaved(Body):
    """Durable: written, synced and renamed before this was said."""

    TYPE: ClassVar[str] = "checkpoint_saved"
    version: int
    lineage: int
    path: str
    checksum: str


@event
class WeightsLoaded(Body):
    """This cell's engine serves (lineage, version); its checksum equals the checkpoint's."""

    TYPE: ClassVar[str] = "weights_loaded"
    cell: int
    version: int
    lineage: int
    checksum: str


@event
class WeightsPublished(Body):
    """The checkpoint is durable and every engine then in rollout has confirmed its checksum."""

    TYPE: ClassVar[str] = "weights_published"
    version: int
    lineage: int
    path: str
    confirmed_by: tuple[int, ...]
