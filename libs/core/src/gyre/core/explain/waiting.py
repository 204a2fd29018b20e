"""What a burst that starves waits for: the oldest group that is not ready, and its executions.

A burst starves when its batch needs more groups and none is ready and unclaimed; under a bound on
staleness also when what is ready must leave room for a group that is not; without streaming as long
as the core stands in training and the burst's groups are not all there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gyre.core.explain.journeys import ExecutionTimes
from gyre.core.groups import leaves_room
from gyre.core.scheduling import transitions
from gyre.core.scheduling.cadence import burst_groups
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import Execution, Group, JobState

Standing = Literal["queued", "starting", "running", "unscored"]

_NO_TIMES: Mapping[str, ExecutionTimes] = {}
# More than one line of a terminal holds; the group's name leads to the others.
_MAX_NAMED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """An execution without a final disposition. since: unix seconds, None when only the state is
    known. cell: where its calls go, None while it is queued."""

    execution: str
    standing: Standing
    cell: int | None
    since: float | None

    def text(self) -> str:
        where = f" on cell {self.cell}" if self.cell is not None else ""
        since = f" since {self.since:.1f}" if self.since is not None else ""
        return f"{self.execution} {self.standing}{where}{since}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """what: who waits. num_missing: groups not there yet. group: the oldest of those not ready,
    dispatched at `version`; None when none is dispatched that is not ready."""

    what: str
    num_missing: int
    group: str | None
    version: int | None
    unfinished: tuple[Unfinished, ...]

    def text(self) -> str:
        """One sentence, without the full stop."""
        groups = "group" if self.num_missing == 1 else "groups"
        lead = f"{self.what} waits for {self.num_missing} more ready {groups}"
        if self.group is None:
            return f"{lead}; none is dispatched that is not ready"
        named = ", ".join(one.text() for one in self.unfinished[:_MAX_NAMED])
        more = len(self.unfinished) - _MAX_NAMED
        rest = f", and {more} more" if more > 0 else ""
        state = f": {named}{rest}" if named else ": its executions have ended, scores are not in"
        return f"{lead}; the oldest unfinished is {self.group} of version {self.version}{state}"


def waiting_for(state: JobState, times: Mapping[str, ExecutionTimes] = _NO_TIMES) -> Waiting | None:
    """What the job's burst starves for, None when it does not.

    times: by execution, from the log; without them it is not known since when an execution runs,
    nor which of the ended ones is not scored.
    """
    if state.status != "running" or state.phase != "training" or not state.order:
        return None
    lack = _lack(state)
    if lack is None:
        return None
    what, num_missing = lack
    group = _oldest_unready(state)
    return Waiting(
        what=what,
        num_missing=num_missing,
        group=group.group if group else None,
        version=group.version if group else None,
        unfinished=tuple(_unfinished(state, group, times)) if group else (),
    )


def _lack(state: JobState) -> tuple[str, int] | None:
    """Who waits, and for how many groups."""
    batch, burst = state.batch, state.burst
    if batch is not None:
        needed = transitions.groups_needed(state)
        if needed <= 0 or batch.members is not None:
            return None
        if state.num_ready_unclaimed == 0:
            return f"batch {batch.batch}", needed
        kept = _kept_room(state, needed)
        return (f"batch {batch.batch} (bound on staleness)", kept) if kept else None
    streaming = state.required_spec.schedule.streaming
    if burst is None and not streaming and state.core.role == "training":
        missing = burst_groups(state, policy_of(state).cadence) - state.num_ready_unclaimed
        return (f"burst {state.num_bursts}", missing) if missing > 0 else None
    return None


def _kept_room(state: JobState, needed: int) -> int:
    """Groups that the open batch's places are kept for (`gyre.core.groups.bound`): older than what
    is ready, and not ready themselves; 0 unless the job waits for such."""
    schedule, batch = state.required_spec.schedule, state.batch
    if batch is None or schedule.max_staleness is None or schedule.on_stale != "wait":
        return 0
    unready = {
        version: sum(not state.groups[name].ready for name in names)
        for version, names in state.unclaimed.items()
    }
    ready = [version for version, num in unready.items() if num < len(state.unclaimed[version])]
    if not ready or leaves_room(
        {version: len(names) for version, names in state.unclaimed.items()},
        min(ready),
        version=batch.version,
        bound=schedule.max_staleness,
        slots=needed,
        batch=schedule.groups_per_step,
    ):
        return 0
    return sum(num for version, num in unready.items() if version < min(ready))


def _oldest_unready(state: JobState) -> Group | None:
    """Packing takes the oldest version first; within one the order is that of dispatch."""
    for _, names in sorted(state.unclaimed.items()):
        for name in names:
            if not state.groups[name].ready:
                return state.groups[name]
    return None


def _unfinished(
    state: JobState, group: Group, times: Mapping[str, ExecutionTimes]
) -> Iterator[Unfinished]:
    for name in group.executions:
        execution = state.executions[name]
        standing = _standing(execution, times.get(name))
        if standing is not None:
            what, since = standing
            yield Unfinished(execution=name, standing=what, cell=execution.cell, since=since)


def _standing(
    execution: Execution, times: ExecutionTimes | None
) -> tuple[Standing, float | None] | None:
    """How far it is and since when; None for one that is done, as far as is known."""
    if execution.terminated:
        if times is None or times.scored is not None:
            return None
        return "unscored", times.terminated
    if execution.cell is None:
        return "queued", None
    if not execution.started:
        return "starting", times.ordered if times else None
    return "running", times.started if times else None
