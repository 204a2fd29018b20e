"""What a simulated run was. Times are seconds of virtual time, zero at the job's start."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.simulator.workload import Ending


@dataclass(slots=True, kw_only=True)
class GroupRun:
    """One group's life. durations: of its executions, in order; endings: their time-outs.
    micro_steps: node-seconds of each.

    left: executions that have not ended, unscored: without a final disposition. version: v_d;
    claimed_version: v_t, None while unclaimed. dropped: it would have passed the staleness bound.
    """

    name: str
    number: int
    executions: tuple[str, ...]
    version: int
    dispatched_s: float
    durations: tuple[float, ...]
    endings: tuple[Ending, ...]
    micro_steps: tuple[float, ...]
    left: int
    unscored: int
    started_s: float | None = None
    ended_s: float | None = None
    ready_s: float | None = None
    claimed_s: float | None = None
    claimed_version: int | None = None
    dropped: bool = False


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Filled while the simulation runs.

    step_ended_s: when each optimizer step was applied. published_s: each publication.
    roles: (time, cell, role), a cell's role from then on; waterlevel: (time, w, C_R). Both are kept
    only when the simulation records. slot_s: integral of the slots held, capacity_s: of C_R.
    training_node_s: nodes in the training role or on their way, over time; busy_node_s: of these,
    the time that micro-steps took. num_facts: facts folded, decisions among them; num_pops: events
    taken from the calendar, timers of the decider among them. num_nodes, num_slots: of all cells.
    """

    step_ended_s: list[float] = field(default_factory=list)
    published_s: list[float] = field(default_factory=list)
    groups: dict[str, GroupRun] = field(default_factory=dict)
    roles: list[tuple[float, int, str]] = field(default_factory=list)
    waterlevel: list[tuple[float, int, int]] = field(default_factory=list)
    slot_s: float = 0.0
    capacity_s: float = 0.0
    training_node_s: float = 0.0
    busy_node_s: float = 0.0
    num_facts: int = 0
    num_decisions: int = 0
    num_pops: int = 0
    end_s: float = 0.0
    num_nodes: float = 0.0
    num_slots: int = 0

    @property
    def num_events(self) -> int:
        return self.num_facts + self.num_pops

    @property
    def bound_s(self) -> float:
        """The work that was done, divided among all nodes without a gap: no schedule does it in
        less, whatever waits for what."""
        rollout_node_s = self.slot_s * self.num_nodes / self.num_slots
        return (self.busy_node_s + rollout_node_s) / self.num_nodes

    @property
    def mean_staleness(self) -> float | None:
        """Group-weighted mean of v_t - v_d over the groups that were consumed; None without any."""
        values = [
            group.claimed_version - group.version
            for group in self.groups.values()
            if group.claimed_version is not None
        ]
        return sum(values) / len(values) if values else None
