"""What users ask of a running job or its cells, on facts.<job>.sched. The scheduler's API appends
them; what follows are decisions (`scheduling`)."""

from __future__ import annotations

from typing import ClassVar

from gyre.contracts.envelope import Body
from gyre.contracts.registry import event


@event
class CancelRequested(Body):
    TYPE: ClassVar[str] = "cancel_requested"
    reason: str


@event
class PauseRequested(Body):
    """Nothing new begins from here on: no start, no transition, no step. What runs goes on."""

    TYPE: ClassVar[str] = "pause_requested"
    reason: str


@event
class ResumeRequested(Body):
    """now: unix seconds when it was asked; None in logs that are older than it is."""

    TYPE: ClassVar[str] = "resume_requested"
    now: float | None = None


@event
class DrainRequested(Body):
    """The job ends after the burst it is in: its weights are published and measured, and what is
    still queued or running then is cancelled."""

    TYPE: ClassVar[str] = "drain_requested"
    reason: str


@event
class ReleaseRequested(Body):
    """Somebody wants this cell back: the job shall go on without it."""

    TYPE: ClassVar[str] = "release_requested"
    cell: int
