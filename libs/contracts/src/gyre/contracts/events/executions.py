"""What the runner says, on facts.<job>.exec.<execution>.run."""

from __future__ import annotations

from typing import ClassVar, Literal

from gyre.contracts.envelope import Body
from gyre.contracts.registry import event

TerminationReason = Literal[
    "completed", "failed", "timeout", "cancelled", "surplus", "dropped", "infrastructure"
]


@event
class Started(Body):
    """The runner has the order and its slot; said before any image pull. p rises here."""

    TYPE: ClassVar[str] = "started"
    execution: str
    group: str
    task: str


@event
class AttemptStarted(Body):
    """attempt counts from 1. key_id: public part of the key made for this attempt; never the key.
    workspace: path below the stack's workspaces directory. proxy: the URL of the one of several
    that the execution is to belong to; None where there is one."""

    TYPE: ClassVar[str] = "attempt_started"
    execution: str
    attempt: int
    key_id: str
    workspace: str
    proxy: str | None = None


@event
class AttemptFailed(Body):
    """Infrastructure broke it; a new attempt follows in a fresh workspace. No counter moves."""

    TYPE: ClassVar[str] = "attempt_failed"
    execution: str
    attempt: int
    error: str


@event
class Terminated(Body):
    """Final. completed: exit status 0; failed: another status; timeout: the harness's ceiling;
    cancelled: with its job; surplus, dropped: by the scheduler's decision of that name;
    infrastructure: no attempt got anywhere. f rises here."""

    TYPE: ClassVar[str] = "terminated"
    execution: str
    attempt: int
    reason: TerminationReason
    exit_code: int | None
    signal: int | None
    workspace: str | None
    duration_s: float
