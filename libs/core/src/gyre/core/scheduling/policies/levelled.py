"""`gyre+`: the elastic policy with two changes that take nothing but what the job itself has seen.

- Longest first: a dispatch starts with the tasks whose executions were the longest so far, so that
  the executions which a burst waits for have begun when it does. A task that was never seen counts
  as the mean of all; with nothing seen the order is the task set's.
- Levelled bursts (`gyre.core.scheduling.cadence.Levelled`).

Which cell changes role when is untouched, and so are the groups of each dispatch and their version:
only their order changes, and the older dispatch stays ahead. Nothing is cut short. A history that
says nothing about the next execution costs the gain and no more.
"""

from __future__ import annotations

from gyre.contracts.events.scheduling import GroupPlan
from gyre.core.scheduling.cadence import Cadence, Levelled
from gyre.core.scheduling.policies.elastic import Elastic
from gyre.core.scheduling.state import JobState


class LongestFirst(Elastic):
    cadence: Cadence = Levelled()

    def start_order(self, state: JobState, groups: tuple[GroupPlan, ...]) -> tuple[GroupPlan, ...]:
        """Stable: equal expectations keep the task set's order."""
        overall = state.all_lengths.mean_log_s
        return tuple(
            sorted(groups, key=lambda plan: state.mean_log_s(plan.task, overall), reverse=True)
        )
