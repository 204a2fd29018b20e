"""The envelope every event travels in, and the ids that make appends safe to repeat."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

# Not a number and the infinities travel as strings: JSON has no word for them, and a gradient or a
# logprob that is not finite must not make the log unreadable.
_FROZEN = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Part(BaseModel):
    """A piece of a body, as strict as the body itself."""

    model_config = _FROZEN


class Body(BaseModel):
    """What happened. Immutable; unknown fields are refused, so a misspelt field cannot be lost.

    `TYPE` is the event's name on the wire and `VERSION` its schema version: a change of meaning
    raises the version and adds an upcaster, it never edits what is in the log.
    """

    model_config = _FROZEN

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1


class Decision(Body):
    """A fact that the scheduler decided. It carries all the decider looked at besides the log.

    based_on: stream sequence of the last fact folded before deciding. now: the scheduler's clock,
    unix seconds. Folding the log up to `based_on` and deciding at `now` gives this event again.
    """

    based_on: int
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One event as it lies in the log.

    id: 32 hex digits, derived from the cause (`event_id`), so that a retry is the same event.
    job: the job it belongs to, or "cluster". aggregate: the subject it was appended to.
    time: unix seconds on the writer's clock. causation: id of the event or command behind it.
    """

    id: str
    type: str
    version: int
    job: str
    aggregate: str
    time: float
    causation: str
    body: Body


def event_id(*cause: str | int) -> str:
    """The id of the event that `cause` brings about; equal causes give equal ids.

    No id contains the separator that joins the parts, so ("a", "bc") and ("ab", "c") differ.
    """
    return hashlib.sha256("\x1f".join(map(str, cause)).encode()).hexdigest()[:32]
