"""What the trajectory service says: groups on facts.<job>.group.<group>, micro-steps on
facts.<job>.batch.<batch>.stream."""

from __future__ import annotations

from typing import ClassVar, Literal

from gyre.contracts.envelope import Body, Part
from gyre.contracts.registry import event


class ExecutionOutcome(Part):
    """advantage: group-relative, 0 for an execution that is not in the baseline or in a zero-weight
    group. surplus: one of the N' - N that were not kept, whatever became of it; no reward."""

    execution: str
    disposition: Literal["valid", "excluded", "placeholder", "surplus"]
    reward: float | None
    advantage: float


@event
class GroupReady(Body):
    """All N that are kept have a final disposition. zero_weight: fewer than two valid rewards, or
    all equal: it counts as one of B and trains nothing."""

    TYPE: ClassVar[str] = "group_ready"
    group: str
    task: str
    version: int
    lineage: int
    outcomes: tuple[ExecutionOutcome, ...]
    zero_weight: bool


@event
class GroupClaimed(Body):
    """Packing drew the group for `batch`: it is one of that step's B."""

    TYPE: ClassVar[str] = "group_claimed"
    group: str
    batch: str


@event
class MicroStepEmitted(Body):
    """A unit of training work: packed rows of whole executions. digest: of its blob (SHA-256).
    Its index is its place in the batch; cells claim it by index."""

    TYPE: ClassVar[str] = "micro_step_emitted"
    batch: str
    index: int
    digest: str
    executions: tuple[str, ...]
    num_rows: int
    row_tokens: int
    num_tokens: int
    num_targets: int


@event
class StreamClosed(Body):
    """B groups are in and all their micro-steps are out."""

    TYPE: ClassVar[str] = "stream_closed"
    batch: str
    groups: tuple[str, ...]
    num_micro_steps: int
    num_targets: int
    num_paths_too_long: int = 0
