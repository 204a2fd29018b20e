"""Which task each group samples, and what its executions are called."""

from __future__ import annotations

from gyre.contracts.events.scheduling import GroupPlan
from gyre.core.scheduling.state import JobState


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
