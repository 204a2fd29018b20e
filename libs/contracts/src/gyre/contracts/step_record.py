"""What the objective did with each execution of a step: a blob that `step_completed` names.

A blob and not the event: with B*N in the hundreds it is tens of kilobytes that no fold needs, and
the facts are folded whole by every service that starts.
"""

from __future__ import annotations

from gyre.contracts.envelope import Part


class ExecutionRecord(Part):
    """One execution in one step. advantage: A_i. num_targets: L_i. ratio: s_i of eq. (5), None
    where the micro-step's loss was not finite. kept: m_i of eq. (6) is 1."""

    execution: str
    group: str
    micro_step: int
    cell: int
    advantage: float
    num_targets: int
    ratio: float | None
    kept: bool


class StepRecord(Part):
    """Every execution of the step's micro-steps, placeholders too, by micro-step and its order."""

    batch: str
    step: int
    version: int
    lineage: int
    executions: tuple[ExecutionRecord, ...]
