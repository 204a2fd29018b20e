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
class ExecutionQuarantined(Body):
    """The records of its calls cannot be trained: it has no targets. Its siblings, its reward in
    their baseline and its group's place among the B stay as they are. error: what is wrong with
    which record."""

    TYPE: ClassVar[str] = "execution_quarantined"
    group: str
    execution: str
    error: str


@event
class MicroStepEmitted(Body):
    """A unit of training work: packed rows of whole executions. digest: of its blob (SHA-256).
    Its index is its place in the batch; cells claim it by index.

    num_tokens: what the rows carry, each execution's shared prefixes once. num_repeated_tokens:
    those of them that are there again because a tree was larger than a row. num_paths: admitted
    trajectories; num_path_tokens: their tokens laid flat, one path behind the other, so that
    num_path_tokens - num_tokens is what sharing saves. num_admitted_targets: chosen by admission of
    these executions, counted when the paths were drawn; num_paths_too_long: their leaves that were
    dropped before. 0 where an older service did not say.
    """

    TYPE: ClassVar[str] = "micro_step_emitted"
    batch: str
    index: int
    digest: str
    executions: tuple[str, ...]
    num_rows: int
    row_tokens: int
    num_tokens: int
    num_targets: int
    num_paths: int = 0
    num_path_tokens: int = 0
    num_repeated_tokens: int = 0
    num_admitted_targets: int = 0
    num_paths_too_long: int = 0


@event
class StreamClosed(Body):
    """B groups are in and all their micro-steps are out.

    num_targets: in the micro-steps. num_admitted_targets: chosen by admission, counted when the
    paths were drawn; the two are equal, or targets were lost on the way. 0 where an older service
    did not say.
    """

    TYPE: ClassVar[str] = "stream_closed"
    batch: str
    groups: tuple[str, ...]
    num_micro_steps: int
    num_targets: int
    num_paths_too_long: int = 0
    num_admitted_targets: int = 0
