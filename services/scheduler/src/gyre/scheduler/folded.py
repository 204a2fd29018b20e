"""What the scheduler's loop knows from the log alone, and that as bytes: a snapshot's body."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter

from gyre.adapters.journal import Fact
from gyre.contracts import subjects
from gyre.core.scheduling.cluster import ClusterState, evolve_cluster
from gyre.core.scheduling.snapshot import dump_cluster, load_cluster
from gyre.scheduler.orders import OrderDesk, OwedOrder


@dataclass(slots=True, kw_only=True)
class Folded:
    """Mutated by `fold` alone (and `orders` by its `due`).

    last_on: job -> subject -> sequence of the last event there, for the subjects that decisions go
    to. origin, last_event: ids of the log's first event and of the last one folded.
    """

    cluster: ClusterState = field(default_factory=ClusterState)
    orders: OrderDesk = field(default_factory=OrderDesk)
    last_on: dict[str, dict[str, int]] = field(default_factory=dict)
    origin: str = ""
    last_event: str = ""

    @property
    def sequence(self) -> int:
        """Stream sequence of the last fact folded."""
        return self.cluster.sequence

    def fold(self, fact: Fact) -> None:
        job, subject = fact.job, fact.envelope.aggregate
        evolve_cluster(self.cluster, fact.sequence, job, fact.body)
        self.orders.fold(job, fact.body, fact.envelope.time)
        known = self.cluster.jobs.get(job)
        if known is not None and known.finished:
            self.last_on.pop(job, None)
        elif subjects.takes_decisions(subject):
            self.last_on.setdefault(job, {})[subject] = fact.sequence
        self.last_event = fact.envelope.id
        self.origin = self.origin or self.last_event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """What is in a snapshot beside the cluster's state."""

    owed: dict[str, OwedOrder]
    last_on: dict[str, dict[str, int]]
    origin: str
    last_event: str


_REST = TypeAdapter(_Rest)
# What was sent, and when, is of one process and its clock.
_OF_THE_PROCESS = {"owed": {"__all__": {"sent_at", "num_sent"}}}


def dump_folded(folded: Folded) -> bytes:
    """Two lines of JSON: the cluster's state, the rest."""
    rest = _Rest(
        owed=folded.orders.owed,
        last_on=folded.last_on,
        origin=folded.origin,
        last_event=folded.last_event,
    )
    return dump_cluster(folded.cluster) + b"\n" + _REST.dump_json(rest, exclude=_OF_THE_PROCESS)


def load_folded(data: bytes) -> Folded:
    """The inverse of `dump_folded`. Raises ValueError for bytes that are none of its."""
    cluster, _, line = data.partition(b"\n")
    rest = _REST.validate_json(line)
    return Folded(
        cluster=load_cluster(cluster),
        orders=OrderDesk(rest.owed),
        last_on=rest.last_on,
        origin=rest.origin,
        last_event=rest.last_event,
    )
