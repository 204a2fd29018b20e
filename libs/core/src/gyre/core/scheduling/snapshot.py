"""The cluster's state as bytes and back, so that a restart need not fold the whole log.

Every field of every class of the state goes, in its order, but those that follow from the others
(`init=False`), which are made again. A new field needs nothing here. The bytes are JSON, made and
validated by the types themselves, so reading them runs no code of theirs; whether they belong to a
log is for the reader to find out.
"""

from __future__ import annotations

from dataclasses import fields

from pydantic import TypeAdapter

from gyre.core.scheduling.cluster import ClusterState
from gyre.core.scheduling.state import JobState

DERIVED = frozenset(field.name for field in fields(JobState) if not field.init)

_CLUSTER = TypeAdapter(ClusterState)


def dump_cluster(state: ClusterState) -> bytes:
    """JSON in one line. Equal states whose dictionaries have one order give equal bytes."""
    return _CLUSTER.dump_json(
        state, exclude={"jobs": {"__all__": set(DERIVED)}}, exclude_defaults=True
    )


def load_cluster(data: bytes) -> ClusterState:
    """The inverse of `dump_cluster`. Raises ValueError for bytes that are no such state."""
    state = _CLUSTER.validate_json(data)
    for job in state.jobs.values():
        job.derive()
    return state
