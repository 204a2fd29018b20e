"""Start orders between the log and the work queue: which the runners are owed, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling.state import JobState


@dataclass(slots=True, kw_only=True)
class OwedOrder:
    """num_sent counts the sends of this process; sent_at: its clock, None before the first."""

    job: str
    order: sched.StartOrder
    ordered_at: float
    sent_at: float | None = None
    num_sent: int = 0

    def payload(self) -> dict[str, str | int]:
        return {
            "job": self.job,
            "execution": self.order.execution,
            "group": self.order.group,
            "task": self.order.task,
            "seed": self.order.seed,
        }

    def message_id(self) -> str:
        """Equal for the first send of every incarnation, so that a restart's copy is dropped."""
        return f"start-{self.order.execution}-{self.num_sent}"


class OrderDesk:
    """Folds orders and starts; mutated by `fold` and `due` only. owed: by execution, to read."""

    def __init__(self, owed: dict[str, OwedOrder] | None = None) -> None:
        self.owed: dict[str, OwedOrder] = {} if owed is None else owed

    def fold(self, job: str, body: Body, time: float) -> None:
        match body:
            case sched.StartOrdered():
                for order in body.orders:
                    self.owed[order.execution] = OwedOrder(job=job, order=order, ordered_at=time)
            case run_events.Started() | run_events.Terminated():
                self.owed.pop(body.execution, None)
            case sched.JobFinished():
                self.owed = {k: owed for k, owed in self.owed.items() if owed.job != job}
            case _:
                pass

    def due(self, jobs: Mapping[str, JobState], now: float) -> Iterable[OwedOrder]:
        """Orders never sent by this process, or not started by their deadline. Marks them sent, and
        drops those whose execution has ended or is not known: facts of it are lost."""
        for owed in list(self.owed.values()):
            job = jobs[owed.job]
            known = job.executions.get(owed.order.execution)
            if job.lost_fact or known is None or known.terminated:
                del self.owed[owed.order.execution]
                continue
            deadline = job.required_spec.schedule.start_deadline_s
            if owed.sent_at is None or now - owed.sent_at >= deadline:
                owed.sent_at = now
                owed.num_sent += 1
                yield owed
