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


# Edges of the bins in which ratios are counted: of s_i by execution and of rho_u by target. Bin k
# holds edges[k-1] <= ratio < edges[k], the first all below, the last all above. Fixed, so that
# counts of cells, of steps and of jobs add up; close together around 1, where the mask cuts.
RATIO_EDGES = (
    *(0.01, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0),
    *(1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.25, 2.0, 5.0, 10.0, 100.0),
)


class VersionMismatch(Part):
    """Trainer's against recorded log-probabilities over the step's targets that were sampled under
    one policy version; version None: where it is not known. mean_abs, max_abs: nats a target.
    mean_kl: mean of rho - 1 - log rho, an estimate of KL(behaviour || trainer).

    The number alone names the weights, whatever lineage they were served under: engines serve
    durable checkpoints, and a restore takes the newest, so that the numbers which a new lineage
    uses again are those of weights that no engine has had."""

    version: int | None
    num_targets: int
    mean_abs: float
    max_abs: float
    mean_kl: float


class StepStatistics(Part):
    """Over the whole batch, all cells. loss: eq. (6). grad_norm: before clipping, of the sum.
    clip_fraction: share of executions with m_i = 0. mean_ratio: mean s_i. Both of executions that
    have targets, `num_executions` of them. entropy: nats a target. Shares of the targets:
    clipped_targets: without gradient by the mask or (grpo) the clip, weight_capped: rho_u beyond
    the weight's cap, loss_capped: l_u at the loss's cap. ratio_counts, token_ratio_counts: s_i and
    rho_u counted by RATIO_EDGES; empty in logs that are older than they are.

    num_tokens: of the micro-steps' rows. num_path_tokens: of the admitted paths written out one by
    one. num_computed_tokens: of the trees they form in a forward unit, each shared prefix once.
    num_forwarded_tokens: through the model; more than computed where a micro-step took two passes.
    """

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
    num_executions: int = 0
    clipped_targets: float = 0.0
    weight_capped: float = 0.0
    loss_capped: float = 0.0
    ratio_counts: tuple[int, ...] = ()
    token_ratio_counts: tuple[int, ...] = ()
    mismatches: tuple[VersionMismatch, ...] = ()
    num_path_tokens: int = 0
    num_computed_tokens: int = 0
    num_forwarded_tokens: int = 0


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
    """One optimizer update was applied on the core. version: after it. skipped: it was not, the
    weights are unchanged but the step counts; skip_reason: why, `<class of error>: <words>`.
    record: blob with s_i and m_i of each execution (`StepRecord`)."""

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
    skip_reason: str = ""
    record: str | None = None


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
