"""The moments at which roles were decided, as recorded: where `why` is worth asking."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPoint:
    """A recorded decision about a role. left, right: the sides of eq. (2), or of eq. (3) at a
    burst's end, in executions. cell: which joins, None at a burst's end."""

    sequence: int
    now: float
    what: str
    cell: int | None
    left: int
    right: int
    outcome: str


def turning_point(sequence: int, body: Body) -> TurningPoint | None:
    """The fact as a turning point, None when it is none."""
    match body:
        case sched.TransitionStarted():
            return TurningPoint(
                sequence=sequence,
                now=body.now,
                what="eq. (2)",
                cell=body.cell,
                left=body.waterlevel,
                right=body.capacity_after,
                outcome=f"cell {body.cell} to {body.to}, {len(body.moves)} executions moved",
            )
        case sched.BurstEnded():
            return TurningPoint(
                sequence=sequence,
                now=body.now,
                what="eq. (3)",
                cell=None,
                left=body.waterlevel + body.next_dispatch,
                right=body.capacity_without_core,
                outcome=f"burst {body.burst} ends, the core {_core(body)}",
            )
        case _:
            return None


def _core(body: sched.BurstEnded) -> str:
    return "stays in training" if body.core_stays else f"goes back ({body.ready} groups ready)"
