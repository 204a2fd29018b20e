"""Which task each group samples, and what its executions are called."""

from __future__ import annotations

import re

from gyre.contracts.events.scheduling import GroupPlan
from gyre.core.scheduling.state import JobState

_EXECUTION = re.compile(r"(.+)-(?:g|hb|ha|hm\d+v\d+-)\d{4,}-e\d+")


def job_of(execution: str) -> str | None:
    """The job that calls an execution so; None for a name that no job gives."""
    found = _EXECUTION.fullmatch(execution)
    return None if found is None else found[1]


def training_groups(state: JobState, num: int) -> tuple[GroupPlan, ...]:
    """The next `num` groups. Tasks are taken in the set's order, over and over: a set that is
    balanced in each block of B is sampled balanced in each step."""
    size = state.required_spec.schedule.group_size
    first = state.num_groups_dispatched
    tasks = state.train_tasks
    return tuple(
        _plan(f"{state.job}-g{number:04d}", tasks[number % len(tasks)], size)
        for number in range(first, first + num)
    )


def heldout_groups(state: JobState) -> tuple[GroupPlan, ...]:
    """One execution a task: before the first dispatch (hb), after a publication in between (hm with
    its version), after the last one (ha)."""
    marks = {"heldout_before": "hb", "heldout_after": "ha"}
    mark = marks.get(state.phase, f"hm{state.lineage}v{state.published}-")
    return tuple(
        _plan(f"{state.job}-{mark}{number:04d}", task, 1)
        for number, task in enumerate(state.heldout_tasks)
    )


def _plan(group: str, task: str, size: int) -> GroupPlan:
    return GroupPlan(group=group, task=task, executions=tuple(f"{group}-e{k}" for k in range(size)))
