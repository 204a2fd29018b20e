"""Finished runs side by side: how long their steps took, under which policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.contracts.envelope import Envelope
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.report import emulation
from gyre.core.scheduling import JobState, evolve
from gyre.core.staleness import expected_staleness, mean_staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """One run. step_s: seconds each optimizer step took, from the step before it (the first: from
    the first dispatch) to its update; steps that a restore undid are not in it. training_s: from
    the first dispatch to the last publication; total_s: from submission to the end.
    emulation: speeds that the cells were held to, below their own; empty when they were not."""

    job: str
    policy: str
    streaming: bool
    status: str
    emulation: dict[str, list[float | None]]
    step_s: tuple[float, ...]
    training_s: float | None
    total_s: float
    mean_staleness: float | None
    expected_staleness: float


@dataclass(slots=True)
class RunClock:
    """Fold of one job. Mutated by `fold_fact` only."""

    job: str
    state: JobState = field(init=False)
    _first: float | None = None
    _last: float = 0.0
    _dispatched: float | None = None
    _published: float | None = None
    _steps: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = JobState(job=self.job)

    def fold_fact(self, sequence: int, envelope: Envelope) -> None:
        body, time = envelope.body, envelope.time
        done = self.state.num_steps_done
        evolve(self.state, sequence, body)
        self._first = time if self._first is None else self._first
        self._last = time
        match body:
            case sched.Dispatched() if body.kind == "training" and self._dispatched is None:
                self._dispatched = time
            case step_events.StepCompleted() if self.state.num_steps_done > done:
                self._steps.append((body.version, time))
            case cell_events.WeightsPublished():
                self._published = time
            case sched.Restored():
                self._steps = [step for step in self._steps if step[0] <= body.version]
            case _:
                pass

    def times(self) -> RunTimes:
        """What has been folded. Raises ValueError when it has no job_submitted."""
        spec = self.state.required_spec
        start = self._dispatched
        ends = [time for _, time in self._steps]
        begins = [] if start is None else [start, *ends[:-1]]
        published = None if start is None or self._published is None else self._published - start
        return RunTimes(
            job=self.job,
            policy=spec.schedule.policy,
            streaming=spec.schedule.streaming,
            status=self.state.status,
            emulation=emulation(spec.cells),
            step_s=tuple(end - begin for begin, end in zip(begins, ends, strict=False)),
            training_s=published,
            total_s=self._last - (self._first or 0.0),
            mean_staleness=mean_staleness(self.state.groups.values()),
            expected_staleness=expected_staleness(spec.schedule.phi, spec.schedule.mu),
        )
