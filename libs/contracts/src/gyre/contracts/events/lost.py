"""What readers are given in the place of a fact that lies in the log and cannot be read.

Nobody appends it: the journal makes it of the event's place alone (`gyre.adapters.journal`), so
every reader is given the same, live and after a restart. An exported run holds it as it was given.
"""

from __future__ import annotations

from typing import ClassVar

from gyre.contracts.envelope import Body
from gyre.contracts.registry import event


@event
class FactLost(Body):
    """execution: whose subject it lies on, and the only one that it harms; None where it lies on
    another of the job's subjects: the job ends there. error: stream, sequence, subject, and what is
    wrong."""

    TYPE: ClassVar[str] = "fact_lost"
    execution: str | None
    error: str
