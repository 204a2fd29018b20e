"""Forks of a run's calls, counted, and when their number is a reason for an alarm.

A fork is a call that does not go on where an earlier one of its execution ended; its reasons are in
`gyre.core.matching.reasons`. Pure: a fold over recorded calls.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed, RequestRole
from gyre.core.matching.echoes import tools_key
from gyre.core.matching.reasons import EXPLAINED

# Share of calls that are forks without an explanation, above which something is wrong: a client
# that changes its history in a way the matcher does not know does so in most calls, while one that
# drops or edits a turn now and then stays far below.
UNEXPLAINED_ALARM = 0.02
# With fewer calls a single fork would be above it.
UNEXPLAINED_MIN_CALLS = 50
# So many executions in a row that were offered tools and used none: the family's parser does not
# read what this model writes, or the model has never learnt to call.
NO_TOOL_CALLS_ALARM = 16
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
    """unexplained_share: of all calls, 0 without calls. worst: executions with the most unexplained
    forks, then the most forks. alarms: one line each."""

    num_calls: int
    calls_by_role: dict[RequestRole, int]
    num_forks: int
    num_unexplained: int
    unexplained_share: float
    rows: tuple[ReasonRow, ...]
    worst: tuple[ExecutionForks, ...]
    alarms: tuple[str, ...]


@dataclass(slots=True)
class Forks:
    """Fold of one job's calls. Mutated by `fold` only."""

    executions: dict[str, ExecutionForks] = field(default_factory=dict)
    calls_by_role: Counter[RequestRole] = field(default_factory=Counter)
    reasons: Counter[tuple[str, RequestRole]] = field(default_factory=Counter)
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

    def report(self) -> ForkReport:
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
            rows=self._rows(),
            worst=tuple(worst[:NUM_WORST]),
            alarms=tuple(self._alarms(num_calls, unexplained)),
        )

    def _call(self, call: CallRecorded) -> None:
        one = self.executions.setdefault(call.execution, ExecutionForks(execution=call.execution))
        one.num_calls += 1
        one.num_tool_calls += call.num_tool_calls
        one.offered = one.offered or _offers_tools(call)
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

    def _alarms(self, num_calls: int, unexplained: int) -> list[str]:
        alarms = []
        if num_calls >= UNEXPLAINED_MIN_CALLS and unexplained > UNEXPLAINED_ALARM * num_calls:
            alarms.append(
                f"{unexplained} of {num_calls} calls ({unexplained / num_calls:.1%}) fork without "
                f"an explanation, more than {UNEXPLAINED_ALARM:.0%}: tokens are read again and "
                "paths are cut; `gyre forks` names the executions"
            )
        if self.without_tool_calls >= NO_TOOL_CALLS_ALARM:
            alarms.append(
                f"the last {self.without_tool_calls} executions that were offered tools made no "
                "tool call: does the model's family fit, has it learnt to call tools?"
            )
        return alarms


def _offers_tools(call: CallRecorded) -> bool:
    """Only a request that begins anew tells: its head is among the segments. Logs from before heads
    had keys do not tell."""
    if call.parent is not None or not call.segments:
        return False
    head = call.segments[0]
    return head.role == "system" and bool(head.known_by) and head.known_by[0] != _NO_TOOLS
