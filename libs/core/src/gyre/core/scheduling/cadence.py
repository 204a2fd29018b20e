"""How long a burst is, and how many groups are in flight when it begins.

A step makes every group that is in flight behind it one version staler. With n steps in a burst and
(E + (n + 1) / 2) B groups in flight at its beginning, E B groups are left behind its steps on the
mean, so every burst has mean staleness E by itself, whatever its n; only at the job's end, where
nothing more is dispatched, it may have less. The paper's bursts all have n = mu, so (phi + mu) B
groups and E = phi + (mu - 1) / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from gyre.core.scheduling import transitions
from gyre.core.scheduling.state import JobState
from gyre.core.staleness import expected_staleness


class Cadence(Protocol):
    """Pure; of the state alone."""

    def steps(self, state: JobState, step: int) -> int:
        """How many steps the burst has that begins with `step`; 0 behind the last."""
        ...

    def depth(self, state: JobState, step: int) -> int:
        """Groups in flight once that burst's have been dispatched."""
        ...

    def reason(self, state: JobState, step: int) -> str:
        """Why the burst that begins with `step` has not mu steps. To be asked when it has not."""
        ...


class Even:
    """The paper's: mu steps, (phi + mu) B groups; the last burst has what is left."""

    def steps(self, state: JobState, step: int) -> int:
        schedule = state.required_spec.schedule
        return max(0, min(schedule.mu, schedule.num_steps - step))

    def depth(self, state: JobState, step: int) -> int:
        schedule = state.required_spec.schedule
        return schedule.mu * schedule.groups_per_step + schedule.extra_groups

    def reason(self, state: JobState, step: int) -> str:
        return "the job ends with it"


class Levelled:
    """`gyre+`: a short first burst, mu steps in the middle, a long last one.

    The first burst waits for executions while nothing trains, so it waits for fewer; behind the
    last one nothing waits to be published, so it may be long. With S = 48 and mu = 3 the bursts are
    2, 3 times fourteen, 4.
    """

    def steps(self, state: JobState, step: int) -> int:
        schedule = state.required_spec.schedule
        first, last = _ends(state)
        total, mu = schedule.num_steps, schedule.mu
        if first + last > total:
            return Even().steps(state, step)
        if step < first:
            return first - step
        if step >= total - last:
            return max(0, total - step)
        return mu - (step - first) % mu

    def depth(self, state: JobState, step: int) -> int:
        schedule = state.required_spec.schedule
        staleness = expected_staleness(schedule.phi, schedule.mu)
        steps = self.steps(state, step)
        return round((staleness + (steps + 1) / 2) * schedule.groups_per_step)

    def reason(self, state: JobState, step: int) -> str:
        first, last = _ends(state)
        total = state.required_spec.schedule.num_steps
        if first + last > total:
            return Even().reason(state, step)
        if step == 0:
            return "the first burst is short, since nothing trains while it waits"
        if step == total - last:
            return "the last burst is long, since nothing waits to be published behind it"
        return "it is what is left of a burst that did not come to its end"


def _ends(state: JobState) -> tuple[int, int]:
    """Steps of the first and of the last burst. A burst of more than 2 E + 1 steps would need more
    groups than are in flight for it."""
    schedule = state.required_spec.schedule
    longest = math.floor(2 * expected_staleness(schedule.phi, schedule.mu) + 1)
    last = min(schedule.mu + 1, longest)
    first = (schedule.num_steps - last - 1) % schedule.mu + 1
    return first, last


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What one dispatch sends so that the burst behind it has its depth: cut at the job's end, and
    one more for each group that was dropped, so that every step has its B.

    steps: of that burst, 0 behind the last. depth: groups in flight when it begins. in_flight:
    those of them that are dispatched already. left: groups that the job has still to dispatch.
    group_size: executions of a group, N, or N' under oversampling.
    """

    steps: int
    depth: int
    in_flight: int
    left: int
    group_size: int

    @property
    def groups(self) -> int:
        return max(0, min(self.depth - self.in_flight, self.left))

    @property
    def executions(self) -> int:
        """mu N B of eq. (3)."""
        return self.groups * self.group_size


def groups_due(state: JobState, cadence: Cadence) -> int:
    """Groups to dispatch now, for the burst that begins next."""
    return _due(state, cadence, state.num_steps_done).groups


def due_at_publication(state: JobState, cadence: Cadence) -> Due:
    """What the next publication dispatches."""
    return _due(state, cadence, _next_publication(state))


def _due(state: JobState, cadence: Cadence, step: int) -> Due:
    schedule = state.required_spec.schedule
    size = schedule.groups_per_step
    dropped = state.num_groups_dropped
    return Due(
        steps=cadence.steps(state, step),
        depth=cadence.depth(state, step),
        in_flight=state.num_groups_dispatched - dropped - size * step,
        left=schedule.num_steps * size + dropped - state.num_groups_dispatched,
        group_size=schedule.group_size,
    )


def burst_groups(state: JobState, cadence: Cadence) -> int:
    """mu B, the groups of the burst that begins next."""
    steps = cadence.steps(state, state.num_steps_done)
    return steps * state.required_spec.schedule.groups_per_step


def _next_publication(state: JobState) -> int:
    """The step count at which it comes: the burst's end, or now when the burst ends short."""
    burst, done = state.burst, state.num_steps_done
    if burst is None or burst.ended or not burst.holds(done):
        return done
    if state.batch is None and transitions.short_of_groups(state):
        return done
    return burst.first_step + burst.num_steps
