"""The moments at which roles were decided, as recorded: where `why` is worth asking."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.explain.checks import steps_text
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPoint:
    """A recorded decision about a role. what: `eq. (2)` for a cell on its way into training,
    `eq. (3)` at a burst's end; another word where the two sides, in executions, were compared by
    nobody. cell: which changes, None at a burst's end."""

    sequence: int
    now: float
    what: str
    cell: int | None
    left: int
    right: int
    outcome: str


def turning_point(state: JobState, sequence: int, body: Body) -> TurningPoint | None:
    """The fact as a turning point, None when it is none. state: of its job, just before or after
    it."""
    match body:
        case sched.TransitionStarted():
            return TurningPoint(
                sequence=sequence,
                now=body.now,
                what=_what(state, "eq. (2)") if body.to == "training" else _UNASKED,
                cell=body.cell,
                left=body.waterlevel,
                right=body.capacity_after,
                outcome=f"cell {body.cell} to {body.to}, {len(body.moves)} executions moved",
            )
        case sched.BurstEnded():
            return TurningPoint(
                sequence=sequence,
                now=body.now,
                what=_what(state, "eq. (3)"),
                cell=None,
                left=body.waterlevel + body.next_dispatch,
                right=body.capacity_without_core,
                outcome=f"burst {body.burst} ends{_length(state)}, the core {_core(body)}",
            )
        case _:
            return None


def _core(body: sched.BurstEnded) -> str:
    return "stays in training" if body.core_stays else f"goes back ({body.ready} groups ready)"


_UNASKED = "executions, held against nothing"


def _what(state: JobState, equation: str) -> str:
    return equation if policy_of(state).asks_waterlevel else _UNASKED


def _length(state: JobState) -> str:
    """Only of a burst that has made more or fewer steps than mu."""
    burst, mu = state.burst, state.required_spec.schedule.mu
    steps = mu if burst is None else state.num_steps_done - burst.first_step
    return "" if steps == mu else f" after {steps_text(steps)} (mu is {mu})"
