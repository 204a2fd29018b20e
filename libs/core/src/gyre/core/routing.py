"""Which cell an execution's calls go to, and whether that cell's engine can take them.

A fold over the facts: `start_ordered` sets the route, the moves of `transition_started`,
`cell_lost` and `cell_released` change it, `role_changed` says where an engine is ready. Folding is
O(1) a route.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gyre.contracts.envelope import Body
from gyre.contracts.events.cells import EngineLost, RoleChanged, WeightsLoaded
from gyre.contracts.events.scheduling import (
    CellLost,
    CellReleased,
    JobFinished,
    StartOrdered,
    TransitionStarted,
)


class UnreadableWeightVersion(ValueError):
    """An engine's weight version is not of the form `<lineage>.<version>`."""


def weight_version_name(lineage: int, version: int) -> str:
    """The string under which an engine knows a policy version: `<lineage>.<version>`."""
    return f"{lineage}.{version}"


def parse_weight_version(name: str) -> tuple[int, int]:
    """(lineage, version). Raises UnreadableWeightVersion for any other form."""
    lineage, dot, version = name.partition(".")
    if not (dot and lineage.isdecimal() and version.isdecimal()):
        raise UnreadableWeightVersion(f"weight version {name!r}: expected <lineage>.<version>")
    return int(lineage), int(version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A cell's engine that takes calls: base url, and the policy version it was last said to have.

    epoch: sequence of the fact that announced it, so that a restarted engine at the same url is
    another one.
    """

    cell: int
    url: str
    lineage: int
    version: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Whom one fact concerns: executions with a new route, cells whose engine came or went. left:
    the engine that they were routed to, if it lives on and only takes no calls any more."""

    executions: tuple[str, ...] = ()
    cells: tuple[int, ...] = ()
    left: Engine | None = None


_NOTHING = Changed()


class Routes:
    """Routes and engines of every job. Mutated by `evolve` only."""

    def __init__(self) -> None:
        self._cells: dict[str, int] = {}
        self._engines: dict[tuple[str, int], Engine] = {}

    def cell(self, execution: str) -> int | None:
        """The cell that the execution's calls go to; None before its start order."""
        return self._cells.get(execution)

    def engine(self, job: str, execution: str) -> Engine | None:
        """The engine at the end of the execution's route; None while it cannot take calls."""
        cell = self._cells.get(execution)
        return None if cell is None else self._engines.get((job, cell))

    def forget(self, execution: str) -> None:
        """Drops the route of an execution that is over."""
        self._cells.pop(execution, None)

    def evolve(self, job: str, sequence: int, fact: Body) -> Changed:
        """Folds one fact of `job` and says what it changed."""
        match fact:
            case StartOrdered():
                return self._route({order.execution: order.cell for order in fact.orders})
            case TransitionStarted():
                # Capacity leaves with the decision: the cell takes no call until it is back.
                left = self._engines.pop((job, fact.cell), None)
                moved = self._route({move.execution: move.destination for move in fact.moves})
                return replace(moved, cells=(fact.cell,), left=left)
            case CellLost() | CellReleased():
                self._engines.pop((job, fact.cell), None)
                moved = self._route({move.execution: move.destination for move in fact.moves})
                return replace(moved, cells=(fact.cell,))
            case EngineLost():
                self._engines.pop((job, fact.cell), None)
                return Changed(cells=(fact.cell,))
            case RoleChanged():
                return self._change_role(job, sequence, fact)
            case WeightsLoaded():
                return self._load(job, fact)
            case JobFinished():
                return self._finish(job)
            case _:
                return _NOTHING

    def _route(self, destinations: dict[str, int]) -> Changed:
        self._cells.update(destinations)
        return Changed(executions=tuple(destinations))

    def _change_role(self, job: str, sequence: int, fact: RoleChanged) -> Changed:
        if fact.role == "rollout" and fact.engine_url is not None:
            self._engines[job, fact.cell] = Engine(
                cell=fact.cell,
                url=fact.engine_url.rstrip("/"),
                lineage=fact.lineage,
                version=fact.version,
                epoch=sequence,
            )
        else:
            self._engines.pop((job, fact.cell), None)
        return Changed(cells=(fact.cell,))

    def _load(self, job: str, fact: WeightsLoaded) -> Changed:
        engine = self._engines.get((job, fact.cell))
        if engine is not None:
            self._engines[job, fact.cell] = replace(
                engine, lineage=fact.lineage, version=fact.version
            )
        return _NOTHING

    def _finish(self, job: str) -> Changed:
        gone = tuple(cell for owner, cell in self._engines if owner == job)
        for cell in gone:
            del self._engines[job, cell]
        return Changed(cells=gone)
