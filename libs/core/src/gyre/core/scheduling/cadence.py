"""How long a burst is, and how many groups are in flight when it begins.

A step makes every group that is in flight behind it one version staler. With n steps in a burst and
(E + (n + 1) / 2) B groups in flight at its beginning, E B groups are left behind its steps on the
mean, so every burst has mean staleness E by itself, whatever its n; only at the job's end, where
nothing more is dispatched, it may have less. The paper's bursts all have n = mu, so (phi + mu) B
groups and E = phi + (mu - 1) / 2.
"""

from __future__ import annotations

import math
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


class Even:
    """The paper's: mu steps, (phi + mu) B groups; the last burst has what is left."""

    def steps(self, state: JobState, step: int) -> int:
        schedule = state.required_spec.schedule
        return max(0, min(schedule.mu, schedule.num_steps - step))

    def depth(self, state: JobState, step: int) -> int:
        schedule = state.required_spec.schedule
        return schedule.mu * schedule.groups_per_step + schedule.extra_groups


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


def _ends(state: JobState) -> tuple[int, int]:
    """Steps of the first and of the last burst. A burst of more than 2 E + 1 steps would need more
    groups than are in flight for it."""
    schedule = state.required_spec.schedule
    longest = math.floor(2 * expected_staleness(schedule.phi, schedule.mu) + 1)
    last = min(schedule.mu + 1, longest)
    first = (schedule.num_steps - last - 1) % schedule.mu + 1
    return first, last


def groups_due(state: JobState, cadence: Cadence, step: int | None = None) -> int:
    """Groups to dispatch so that the burst from `step` (default: the next) has its depth: cut at
    the job's end, and one more for each that was dropped, so that every step has its B."""
    schedule = state.required_spec.schedule
    at = state.num_steps_done if step is None else step
    size = schedule.groups_per_step
    in_flight = state.num_groups_dispatched - state.num_groups_dropped - size * at
    total = schedule.num_steps * size + state.num_groups_dropped
    left = total - state.num_groups_dispatched
    return max(0, min(cadence.depth(state, at) - in_flight, left))


def executions_due(state: JobState, cadence: Cadence) -> int:
    """mu N B, the executions that the next publication dispatches; N' under oversampling."""
    due = groups_due(state, cadence, _next_publication(state))
    return due * state.required_spec.schedule.group_size


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
