"""Forks and tool calls of a run, counted, and when their numbers are a reason for an alarm.

A fork is a call that does not go on where an earlier one of its execution ended; its reasons are in
`gyre.core.matching.reasons`. Pure: a fold over recorded calls. The limits are the job's (`alarms`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gyre.contracts.alarms import AlarmsSection
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed, RequestRole
from gyre.core.matching.echoes import tools_key
from gyre.core.matching.reasons import EXPLAINED

# Executions named in a report.
NUM_WORST = 5

_NO_TOOLS = tools_key(()).hex()


@dataclass(slots=True, kw_only=True)
class ExecutionForks:
    """One execution's counts. offered: whether a request had tools."""

    execution: str
    num_calls: int = 0
    num_forks: int = 0
    num_unexplained: int = 0
    num_tool_calls: int = 0
    offered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRow:
    """How often a reason was recorded, in all and by the role of the request."""

    reason: str
    explained: bool
    num: int
    by_role: dict[RequestRole, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkReport:
    """unexplained_share: of all calls, 0 without calls. num_calling: calls that call tools, well or
    not; num_malformed: those of them with a tool call that could not be read. worst: executions
    with the most unexplained forks, then the most forks. alarms: one line each."""

    num_calls: int
    calls_by_role: dict[RequestRole, int]
    num_forks: int
    num_unexplained: int
    unexplained_share: float
    num_calling: int
    num_malformed: int
    rows: tuple[ReasonRow, ...]
    worst: tuple[ExecutionForks, ...]
    alarms: tuple[str, ...]


@dataclass(slots=True)
class Forks:
    """Fold of one job's calls. Mutated by `fold` only."""

    executions: dict[str, ExecutionForks] = field(default_factory=dict)
    calls_by_role: Counter[RequestRole] = field(default_factory=Counter)
    reasons: Counter[tuple[str, RequestRole]] = field(default_factory=Counter)
    num_calling: int = 0
    num_malformed: int = 0
    without_tool_calls: int = 0

    def fold(self, event: Body) -> None:
        """An event of `calls.<job>.exec.<E>`, in the order of the execution's log."""
        match event:
            case CallRecorded():
                self._call(event)
            case CallsSealed():
                self._sealed(event.execution)
            case _:
                return

    def report(self, limits: AlarmsSection) -> ForkReport:
        """What was counted so far."""
        num_calls = self.calls_by_role.total()
        num_forks = self.reasons.total()
        unexplained = sum(one.num_unexplained for one in self.executions.values())
        share = unexplained / num_calls if num_calls else 0.0
        worst = sorted(
            (one for one in self.executions.values() if one.num_forks),
            key=lambda one: (-one.num_unexplained, -one.num_forks, one.execution),
        )
        return ForkReport(
            num_calls=num_calls,
            calls_by_role=dict(sorted(self.calls_by_role.items())),
            num_forks=num_forks,
            num_unexplained=unexplained,
            unexplained_share=share,
            num_calling=self.num_calling,
            num_malformed=self.num_malformed,
            rows=self._rows(),
            worst=tuple(worst[:NUM_WORST]),
            alarms=tuple(self._alarms(limits, num_calls, unexplained)),
        )

    def _call(self, call: CallRecorded) -> None:
        one = self.executions.setdefault(call.execution, ExecutionForks(execution=call.execution))
        one.num_calls += 1
        one.num_tool_calls += call.num_tool_calls
        one.offered = one.offered or _offers_tools(call)
        self.num_calling += bool(call.num_tool_calls or call.num_malformed_tool_calls)
        self.num_malformed += bool(call.num_malformed_tool_calls)
        self.calls_by_role[call.request_role] += 1
        if call.fork_reason is not None:
            one.num_forks += 1
            one.num_unexplained += call.fork_reason not in EXPLAINED
            self.reasons[call.fork_reason, call.request_role] += 1

    def _sealed(self, execution: str) -> None:
        one = self.executions.get(execution)
        if one is None or not one.offered:
            return
        self.without_tool_calls = 0 if one.num_tool_calls else self.without_tool_calls + 1

    def _rows(self) -> tuple[ReasonRow, ...]:
        """The unexplained ones first, the most frequent first."""
        by_reason: dict[str, dict[RequestRole, int]] = {}
        for (reason, role), num in sorted(self.reasons.items()):
            by_reason.setdefault(reason, {})[role] = num
        rows = [
            ReasonRow(
                reason=reason,
                explained=reason in EXPLAINED,
                num=sum(by_role.values()),
                by_role=by_role,
            )
            for reason, by_role in by_reason.items()
        ]
        return tuple(sorted(rows, key=lambda row: (row.explained, -row.num, row.reason)))

    def _alarms(self, limits: AlarmsSection, num_calls: int, unexplained: int) -> Iterator[str]:
        least = limits.min_calls
        if num_calls >= least and unexplained > limits.unexplained_forks * num_calls:
            yield (
                f"{unexplained} of {num_calls} calls ({unexplained / num_calls:.1%}) fork without "
                f"an explanation, more than {limits.unexplained_forks:.0%}: tokens are read again "
                "and paths are cut; `gyre forks` names the executions"
            )
        calling, malformed = self.num_calling, self.num_malformed
        if calling >= least and malformed > limits.malformed_calls * calling:
            yield (
                f"{malformed} of {calling} calls that call tools ({malformed / calling:.1%}) have "
                f"one that could not be read, more than {limits.malformed_calls:.0%}: does the "
                "model's family fit?"
            )
        if self.without_tool_calls >= limits.executions_without_tool_calls:
            yield (
                f"the last {self.without_tool_calls} executions that were offered tools made no "
                "tool call: does the model's family fit, has it learnt to call tools?"
            )


def _offers_tools(call: CallRecorded) -> bool:
    """Only a request that begins anew tells: its head is among the segments. Logs from before heads
    had keys do not tell."""
    if call.parent is not None or not call.segments:
        return False
    head = call.segments[0]
    return head.role == "system" and bool(head.known_by) and head.known_by[0] != _NO_TOOLS
