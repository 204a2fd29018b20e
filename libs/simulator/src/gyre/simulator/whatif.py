"""A recorded run's executions under another schedule: `gyre whatif`.

The run's own schedule is simulated first: how far that is from what really happened says how much
the prediction for another schedule is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gyre.contracts.job import JobSpec
from gyre.contracts.schedule import FIXED_SPLIT
from gyre.simulator.spec import SpecError, checked, without_deadlines
from gyre.simulator.summary import Summary, simulate_job, summarize
from gyre.simulator.trace import Trace

# Only what a scheduler does may change: the rest of a job is in the recorded executions already.
_SECTIONS = ("schedule", "cells")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """recorded_s: the real run's training, from its start to its last step. own: that schedule,
    simulated. changed: the other one, for as many steps; None when nothing was to be changed."""

    recorded_s: float
    own: Summary
    changed: Summary | None

    @property
    def calibration_error(self) -> float:
        """Simulated over recorded, less one."""
        return self.own.total_s / self.recorded_s - 1


def what_if(trace: Trace, changes: dict[str, Any]) -> WhatIf:
    """changes: dotted names in the job file to their new values. Raises SpecError, StalledError."""
    own = _simulated(trace, trace.spec, until_step=len(trace.step_s))
    changed = None
    if changes:
        spec = changed_spec(trace.spec, changes)
        steps = min(len(trace.step_s), spec.schedule.num_steps)
        changed = _simulated(trace, spec, until_step=steps)
    return WhatIf(recorded_s=trace.step_s[-1], own=own, changed=changed)


def changed_spec(spec: JobSpec, changes: dict[str, Any]) -> JobSpec:
    """Raises SpecError for a name that is not a schedule's or that the job file refuses."""
    raw = spec.model_dump()
    for name, value in changes.items():
        section, _, key = name.partition(".")
        if section not in _SECTIONS or key not in raw[section]:
            raise SpecError(f"{name}: no field of the job file's {' or '.join(_SECTIONS)}")
        raw[section][key] = value
    policy = raw["schedule"]["policy"]
    if policy not in FIXED_SPLIT and "schedule.training_cells" not in changes:
        raw["schedule"]["training_cells"] = None
    if "cells.count" in changes and "cells.each_capacity" not in changes:
        raw["cells"]["each_capacity"] = ()
    return checked(JobSpec, raw)


def _simulated(trace: Trace, spec: JobSpec, until_step: int) -> Summary:
    spec = without_deadlines(spec)
    nodes = (1.0,) * spec.cells.num_cells
    outcome = simulate_job(spec, trace, trace.speeds, nodes, until_step=until_step)
    return summarize(spec, outcome, spec.seed)
