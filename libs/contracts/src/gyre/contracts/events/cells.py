"""What cell agents say of their cells: on facts.cluster.cell.<cell> before a job, on
facts.<job>.cell.<cell> in one."""

from __future__ import annotations

from typing import ClassVar, Literal

from gyre.contracts.envelope import Body, Part
from gyre.contracts.registry import event

CellRole = Literal["rollout", "training", "offline"]


@event
class AgentOnline(Body):
    """An agent began its life: whatever an earlier one of this cell ran is gone. engines: kinds
    that it can start. has_gpu: its engine computes on one; trains_on_gpu: its trainer does.
    node_ranks: the most trainer ranks that each of the cell's nodes takes, None for any number."""

    TYPE: ClassVar[str] = "agent_online"
    cell: int
    incarnation: str
    host: str
    pid: int
    engines: tuple[str, ...] = ("local",)
    has_gpu: bool = False
    trains_on_gpu: bool = False
    node_ranks: tuple[int | None, ...] = (None,)


class RolePhase(Part):
    """One phase of a role change. Bytes: resident memory of the cell's processes of either side, on
    the device where they have one, at the phase's end. undone: it failed, and what had been done
    until then was taken back."""

    name: str
    seconds: float
    engine_bytes: int | None = None
    trainer_bytes: int | None = None
    undone: bool = False


@event
class RoleChanged(Body):
    """The cell is in this role now. rollout: engine ready with (lineage, version) at engine_url.

    duration_s: since the order. Process ids show that both processes outlive every change;
    trainer_pids: of all ranks. undone: the phase whose failure sent the cell back to rollout.
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
    trainer_pids: tuple[int, ...] = ()
    phases: tuple[RolePhase, ...] = ()
    undone: str = ""


@event
class EngineLost(Body):
    TYPE: ClassVar[str] = "engine_lost"
    cell: int
    error: str


@event
class TrainerReady(Body):
    """The trainer is up (again) and in no world. pid: of its first rank; pids: of all."""

    TYPE: ClassVar[str] = "trainer_ready"
    cell: int
    pid: int
    pids: tuple[int, ...] = ()


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
    """The core serves its weights of (lineage, version) at host:port: those that its trainer holds,
    to joiners, or its newest checkpoint, to engines. checksum: of the bytes, empty where it was not
    known yet: the transport tells it with them. session: what the transport moves them by beyond
    the address. num_bytes: of the weights."""

    TYPE: ClassVar[str] = "weights_exposed"
    cell: int
    version: int
    lineage: int
    host: str
    port: int
    checksum: str
    transport: str = "tcp"
    session: str = ""
    num_bytes: int = 0
    source: Literal["trainer", "checkpoint"] = "trainer"


@event
class BatchJoined(Body):
    """The cell holds the batch's frozen weights and claims from now on (core and satellites).
    phases: what joining took, after the role change."""

    TYPE: ClassVar[str] = "batch_joined"
    cell: int
    batch: str
    version: int
    lineage: int
    phases: tuple[RolePhase, ...] = ()


@event
class CheckpointSaved(Body):
    """Durable: written, synced and renamed before this was said."""

    TYPE: ClassVar[str] = "checkpoint_saved"
    version: int
    lineage: int
    path: str
    checksum: str


@event
class CheckpointFailed(Body):
    """The core could not save (lineage, version): the job pauses, and saves again when resumed.
    error: what is missing and how to mend it."""

    TYPE: ClassVar[str] = "checkpoint_failed"
    cell: int
    version: int
    lineage: int
    error: str


@event
class WeightsLoaded(Body):
    """This cell's engine serves (lineage, version). checksum: of the checkpoint's manifest, which
    the engine said too; an SGLang on a GPU cannot: there only what was sent to it was compared.
    transport, in_flight: as the job said. seconds: from the order to the confirmation.
    num_retracted: tokens of running calls whose prefix has to be computed again."""

    TYPE: ClassVar[str] = "weights_loaded"
    cell: int
    version: int
    lineage: int
    checksum: str
    transport: str = "disk"
    in_flight: str = "retract"
    seconds: float = 0.0
    num_retracted: int = 0


@event
class WeightsPublished(Body):
    """The checkpoint is durable and every engine then in rollout has confirmed its checksum."""

    TYPE: ClassVar[str] = "weights_published"
    version: int
    lineage: int
    path: str
    confirmed_by: tuple[int, ...]
