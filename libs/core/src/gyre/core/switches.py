"""What each role switch cost: calls that it moved, and what became of their caches.

Pure: folded from a job's facts and then its calls. A switch is a decision that moves executions off
a cell. A call that ran then says it in `call_rerouted`; of an execution that was between two calls
the next one says it, `call_recorded.moved`, or its seal, if none came.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallsSealed, Moved
from gyre.contracts.events.cells import RoleChanged
from gyre.contracts.events.scheduling import CellLost, CellReleased, TransitionStarted
from gyre.core.switch_phases import SwitchPhases

# How far the clocks of two machines may be apart: what follows from a decision may seem earlier.
CLOCKS_S = 1.0


@dataclass(slots=True, kw_only=True)
class Cost:
    """calls_rerouted: that ran when the route changed; calls_moved: the first of their path after
    it had. tokens_kept: sampled before, and not sampled again. Of the contexts, tokens_migrated
    were copied, in migration_s over all copies, tokens_unused of them for calls that did not come;
    tokens_prefilled_again were computed a second time.
    tokens_cached, tokens_known: what the destinations had of what the source had, where both are
    told. Mutated by `add_*` only.
    """

    calls_rerouted: int = 0
    calls_moved: int = 0
    tokens_kept: int = 0
    tokens_migrated: int = 0
    tokens_prefilled_again: int = 0
    migration_s: float = 0.0
    tokens_unused: int = 0
    tokens_cached: int = 0
    tokens_known: int = 0

    @property
    def cached_share(self) -> float | None:
        """Of the tokens that the sources had, those that the destinations had too; None of none."""
        return self.tokens_cached / self.tokens_known if self.tokens_known else None

    def add_rerouted(self, event: CallRerouted) -> None:
        self.calls_rerouted += 1
        self.tokens_kept += event.tokens_kept
        self._add(event.tokens_migrated, event.tokens_prefilled_again, event.migration_s)
        if event.num_cached_tokens is not None:
            # Nobody has the last token's entries: it is what the next step is computed from.
            self.tokens_cached += event.num_cached_tokens
            self.tokens_known += event.num_cached_tokens + event.tokens_prefilled_again - 1

    def add_moved(self, moved: Moved) -> None:
        self.calls_moved += 1
        self._add(moved.tokens_migrated, moved.tokens_prefilled_again, moved.migration_s)
        self.tokens_cached += moved.tokens_at_source - moved.tokens_prefilled_again
        self.tokens_known += moved.tokens_at_source

    def add_unused(self, moved: Moved) -> None:
        self.tokens_unused += moved.tokens_migrated
        self._add(moved.tokens_migrated, 0, moved.migration_s)

    def add_all(self, others: Iterable[Cost]) -> None:
        for other in others:
            self.calls_rerouted += other.calls_rerouted
            self.calls_moved += other.calls_moved
            self.tokens_kept += other.tokens_kept
            self._add(other.tokens_migrated, other.tokens_prefilled_again, other.migration_s)
            self.tokens_unused += other.tokens_unused
            self.tokens_cached += other.tokens_cached
            self.tokens_known += other.tokens_known

    def summary(self) -> dict[str, Any]:
        """As in report.json: counts and tokens; migration_s in seconds."""
        return {
            "calls_rerouted": self.calls_rerouted,
            "calls_moved": self.calls_moved,
            "tokens_kept": self.tokens_kept,
            "tokens_migrated": self.tokens_migrated,
            "tokens_unused": self.tokens_unused,
            "tokens_prefilled_again": self.tokens_prefilled_again,
            "migration_s": self.migration_s,
            "cached_share": self.cached_share,
        }

    def _add(self, migrated: int, prefilled_again: int, seconds: float) -> None:
        self.tokens_migrated += migrated
        self.tokens_prefilled_again += prefilled_again
        self.migration_s += seconds


@dataclass(slots=True, kw_only=True)
class Switch:
    """time: unix seconds of the decision. to: training, rollout, lost or released. num_executions:
    that it moved. seconds: until the cell had its new role, None before, for one that left, and for
    one that was undone; undone: by the failure of which phase."""

    time: float
    cell: int
    to: str
    num_executions: int
    seconds: float | None = None
    undone: str = ""
    cost: Cost = field(default_factory=Cost)


@dataclass(slots=True)
class Switches:
    """Of one job. Mutated by `fold_fact`, for all facts, and then `fold_call`.

    other: what moved without a switch: an engine died or aborted its calls for a publication.
    phases: of all changes of role, whether they moved something or not.
    """

    rows: list[Switch] = field(default_factory=list)
    other: Cost = field(default_factory=Cost)
    phases: SwitchPhases = field(default_factory=SwitchPhases)
    _moves: dict[tuple[str, int], list[Switch]] = field(default_factory=dict)
    _changing: dict[int, Switch] = field(default_factory=dict)

    def fold_fact(self, body: Body, time: float) -> None:
        self.phases.fold(body)
        match body:
            case TransitionStarted() if body.moves:
                self._changing[body.cell] = self._add(body, body.to, time)
            case CellLost() if body.moves:
                self._add(body, "lost", time)
            case CellReleased() if body.moves:
                self._add(body, "released", time)
            case RoleChanged():
                switch = self._changing.pop(body.cell, None)
                if switch is not None:
                    switch.undone = body.undone
                if switch is not None and switch.to == body.role:
                    switch.seconds = time - switch.time
            case _:
                pass

    def fold_call(self, envelope: Envelope) -> None:
        match envelope.body:
            case CallRerouted() as event:
                switch = self._switch(event.execution, event.source, envelope.time)
                if switch is None or event.reason == "publication":
                    self.other.add_rerouted(event)
                else:
                    switch.cost.add_rerouted(event)
            case CallRecorded(moved=Moved() as moved) as event:
                self._cost(event.execution, moved, envelope.time).add_moved(moved)
            case CallsSealed() as event:
                for moved in event.unused:
                    self._cost(event.execution, moved, envelope.time).add_unused(moved)
            case _:
                pass

    def total(self) -> Cost:
        """Over all switches; without `other`."""
        total = Cost()
        total.add_all(switch.cost for switch in self.rows)
        return total

    def summary(self, started_at: float) -> dict[str, Any]:
        """As in report.json. started_at: unix seconds of the job's start, which at_s count from."""
        return {
            "num": len(self.rows),
            "executions_moved": sum(switch.num_executions for switch in self.rows),
            **self.total().summary(),
            "without_a_switch": self.other.summary(),
            "undone": sum(bool(switch.undone) for switch in self.rows),
            "phases": self.phases.summary(),
            "each": [
                {
                    "at_s": switch.time - started_at,
                    "cell": switch.cell,
                    "to": switch.to,
                    "switch_s": switch.seconds,
                    "undone": switch.undone,
                    "executions_moved": switch.num_executions,
                    **switch.cost.summary(),
                }
                for switch in self.rows
            ],
        }

    def _add(
        self, body: TransitionStarted | CellLost | CellReleased, to: str, time: float
    ) -> Switch:
        switch = Switch(time=time, cell=body.cell, to=to, num_executions=len(body.moves))
        self.rows.append(switch)
        for move in body.moves:
            self._moves.setdefault((move.execution, move.source), []).append(switch)
        return switch

    def _cost(self, execution: str, moved: Moved, time: float) -> Cost:
        switch = self._switch(execution, moved.source, time)
        return self.other if switch is None else switch.cost

    def _switch(self, execution: str, source: int, time: float) -> Switch | None:
        """The last one before `time` that moved the execution off `source`."""
        switches = self._moves.get((execution, source), ())
        index = bisect_right([switch.time for switch in switches], time + CLOCKS_S)
        return switches[index - 1] if index else None
