"""The burst that goes on or begins next: how long it is, and what its end brings."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.core.explain.checks import Check, burst_end_checks, steps_text
from gyre.core.scheduling import transitions
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.rules.bursts import after_burst, is_over
from gyre.core.scheduling.state import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstView:
    """begun: False for the one that begins next. reason: why it has not mu steps, empty when it
    has."""

    burst: int
    begun: bool
    first_step: int
    num_steps: int
    mu: int
    reason: str

    def text(self) -> str:
        """One sentence, without the full stop."""
        verb = "has" if self.begun else "will have"
        lead = (
            f"burst {self.burst} {verb} {steps_text(self.num_steps)}, from step {self.first_step}"
        )
        return f"{lead}, instead of mu = {self.mu}: {self.reason}" if self.reason else lead


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstEndView:
    """Eq. (3), or what the policy has in its place. final: the burst is over, so that these are the
    numbers of the decision. Before, only the sides of the equation mean something and `checks`
    holds that one alone: the supply is still counted for the open batch.
    next_groups, next_dispatch: what the publication will dispatch, and its executions.
    left: waterlevel + next_dispatch."""

    burst: int
    final: bool
    core_stays: bool
    staying_satellites: tuple[int, ...]
    waterlevel: int
    next_groups: int
    next_dispatch: int
    capacity: int
    ready: int
    checks: tuple[Check, ...]

    @property
    def left(self) -> int:
        return self.waterlevel + self.next_dispatch


def burst_view(state: JobState) -> BurstView | None:
    """None where no burst goes on and none will begin."""
    if state.status != "running" or state.phase not in ("booting", "heldout_before", "training"):
        return None
    burst, policy = state.burst, policy_of(state)
    begun = burst is not None and not burst.ended
    if burst is not None and not burst.ended:
        number, first, num_steps = burst.burst, burst.first_step, burst.num_steps
    else:
        number, first = state.num_bursts, state.num_steps_done
        num_steps = policy.cadence.steps(state, first)
    if num_steps == 0 or (not begun and state.drain_requested is not None):
        return None
    mu = state.required_spec.schedule.mu
    return BurstView(
        burst=number,
        begun=begun,
        first_step=first,
        num_steps=num_steps,
        mu=mu,
        reason="" if num_steps == mu else policy.cadence.reason(state, first),
    )


def burst_end(state: JobState) -> BurstEndView | None:
    """What happens to the core when the open burst ends; None when none is open."""
    burst = state.burst
    if burst is None or burst.ended or state.status != "running" or not state.order:
        return None
    end, final = after_burst(state), is_over(state)
    return BurstEndView(
        burst=burst.burst,
        final=final,
        core_stays=end.core_stays,
        staying_satellites=end.staying_satellites,
        waterlevel=state.training.waterlevel,
        next_groups=end.due.groups,
        next_dispatch=end.due.executions,
        capacity=end.capacity,
        ready=transitions.supply(state),
        checks=burst_end_checks(state, end, final=final),
    )
