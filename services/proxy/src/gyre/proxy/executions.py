"""What the facts say about executions, jobs and routes: whose key is valid, where its calls go.

Pure: folded from GYRE_FACTS, O(1) a fact. Nothing of the calls themselves is in here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import AttemptFailed, AttemptStarted, Terminated
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.scheduling import JobSubmitted, StartOrdered
from gyre.contracts.job import JobSpec
from gyre.core.routing import Engine, Routes


@dataclass(slots=True, kw_only=True)
class Execution:
    """attempt: the latest that started, 0 before any. failed_attempt: the latest that failed."""

    id: str
    job: str
    seed: int = 0
    attempt: int = 0
    failed_attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What one fact asks of the shell.

    woken: executions and (job, cell) whose waiters look again. revoked: executions whose earlier
    attempts' open calls end. terminated: executions to seal. moved, left: executions that go on
    elsewhere, and the engine that they leave.
    """

    woken: tuple[str | tuple[str, int], ...] = ()
    revoked: tuple[str, ...] = ()
    terminated: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    left: Engine | None = None


_NONE = Effects()


@dataclass(slots=True)
class Registry:
    """Mutated by `evolve` and `forget` only. terminated: executions that are over, also sealed.
    lost_jobs: that have ended because a fact of theirs cannot be read, their submission perhaps."""

    routes: Routes = field(default_factory=Routes)
    jobs: dict[str, JobSpec] = field(default_factory=dict)
    executions: dict[str, Execution] = field(default_factory=dict)
    terminated: set[str] = field(default_factory=set)
    lost_jobs: set[str] = field(default_factory=set)

    def evolve(self, job: str, sequence: int, fact: Body) -> Effects:
        """Folds one fact and says what follows from it."""
        match fact:
            case JobSubmitted():
                self.jobs[job] = fact.spec
                return _NONE
            case AttemptStarted():
                execution = self._execution(job, fact.execution)
                execution.attempt = max(execution.attempt, fact.attempt)
                return Effects(woken=(fact.execution,), revoked=(fact.execution,))
            case AttemptFailed():
                execution = self._execution(job, fact.execution)
                execution.failed_attempt = max(execution.failed_attempt, fact.attempt)
                return Effects(revoked=(fact.execution,))
            case Terminated(execution=name) | FactLost(execution=str(name)):
                # One of the execution's facts that is lost may have been this.
                self._execution(job, name)
                self.terminated.add(name)
                one = (name,)
                return Effects(woken=one, revoked=one, terminated=one)
            case FactLost():
                self.lost_jobs.add(job)
                return _NONE
            case StartOrdered():
                for order in fact.orders:
                    self._execution(job, order.execution).seed = order.seed
        changed = self.routes.evolve(job, sequence, fact)
        cells = tuple((job, cell) for cell in changed.cells)
        moved = changed.executions if changed.left is not None else ()
        return Effects(woken=(*changed.executions, *cells), moved=moved, left=changed.left)

    def is_valid(self, job: str, execution: str, attempt: int) -> bool:
        """Whether calls of this attempt are served: it is the job's, the latest, and runs."""
        known = self.executions.get(execution)
        return (
            known is not None
            and known.job == job
            and job not in self.lost_jobs
            and execution not in self.terminated
            and known.attempt == attempt
            and known.failed_attempt < attempt
        )

    def may_become_valid(self, job: str, execution: str, attempt: int) -> bool:
        """Whether a fact that is still under way could make the attempt valid."""
        known = self.executions.get(execution)
        if execution in self.terminated or job in self.lost_jobs:
            return False
        return known is None or (known.job == job and known.attempt < attempt)

    def engine(self, execution: Execution) -> Engine | None:
        """Where the execution's calls go now; None while they have to wait."""
        return self.routes.engine(execution.job, execution.id)

    def forget(self, execution: str) -> None:
        """Drops what a sealed execution needs no more; that it is over stays known."""
        self.executions.pop(execution, None)
        self.routes.forget(execution)

    def _execution(self, job: str, execution: str) -> Execution:
        if execution not in self.executions:
            self.executions[execution] = Execution(id=execution, job=job)
        return self.executions[execution]
