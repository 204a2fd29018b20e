"""Subjects: one aggregate per (thing, writer). The only place where a subject is spelt.

| subject | writer |
|---|---|
| facts.<job>.sched | scheduler |
| facts.<job>.exec.<execution>.run | runner |
| facts.<job>.exec.<execution>.score | evaluator |
| facts.<job>.group.<group> | trajectory |
| facts.<job>.batch.<batch>.stream | trajectory |
| facts.<job>.batch.<batch>.claims | the cells, and the scheduler's epoch_fenced |
| facts.<job>.cell.<cell> | that cell's agent |
| facts.cluster.cell.<cell> | that cell's agent, before it has a job |
| calls.<job>.exec.<execution> | proxy |
| alive.cell.<cell> (core NATS, not kept) | that cell's agent, all the time |
| node.<cell>.<node> (core NATS, not kept) | the agent of the cell's first node, which asks |
| node.<cell>.ended (core NATS, not kept) | the cell's other nodes |
"""

from __future__ import annotations

import re

CLUSTER = "cluster"
EVERY_HEARTBEAT = "alive.cell.*"
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
# The table's facts and calls.
_KEPT = re.compile(
    rf"(facts|calls)\.(?P<job>{_ID.pattern})\."
    rf"(sched|group\.{_ID.pattern}|batch\.{_ID.pattern}\.(stream|claims)|cell\.\d+"
    rf"|exec\.(?P<execution>{_ID.pattern})(\.run|\.score)?)"
)


class InvalidId(ValueError):
    """An id that cannot be part of a subject."""


def checked_id(value: str) -> str:
    """Return `value` if it is letters, digits, `_` and `-` only (1-80), else raise InvalidId."""
    if not _ID.fullmatch(value):
        raise InvalidId(f"id {value!r}: use 1 to 80 letters, digits, '_' or '-'")
    return value


def sched(job: str) -> str:
    return f"facts.{checked_id(job)}.sched"


def run(job: str, execution: str) -> str:
    return f"facts.{checked_id(job)}.exec.{checked_id(execution)}.run"


def score(job: str, execution: str) -> str:
    return f"facts.{checked_id(job)}.exec.{checked_id(execution)}.score"


def group(job: str, group_id: str) -> str:
    return f"facts.{checked_id(job)}.group.{checked_id(group_id)}"


def batch_stream(job: str, batch: str) -> str:
    return f"facts.{checked_id(job)}.batch.{checked_id(batch)}.stream"


def takes_decisions(subject: str) -> bool:
    """The scheduler appends to it: a job's own subject, and a batch's claims when it is fenced."""
    return subject.endswith((".sched", ".claims"))


def owner_of(subject: str) -> tuple[str, str | None]:
    """(job, execution) that a fact's or a call's subject names, the latter only where it is an
    execution's own. A subject that is not in the table is no job's: the cluster's."""
    found = _KEPT.fullmatch(subject)
    return (CLUSTER, None) if found is None else (found["job"], found["execution"])


def batch_claims(job: str, batch: str) -> str:
    return f"facts.{checked_id(job)}.batch.{checked_id(batch)}.claims"


def cell(job: str, cell_index: int) -> str:
    return f"facts.{checked_id(job)}.cell.{cell_index}"


def registration(cell_index: int) -> str:
    return cell(CLUSTER, cell_index)


def heartbeat(cell_index: int) -> str:
    return f"alive.cell.{cell_index}"


def node(cell_index: int, number: int) -> str:
    """Where a cell's other node, 1 and above, takes requests."""
    return f"node.{cell_index}.{number}"


def node_ended(cell_index: int) -> str:
    """Where a cell's other nodes say that a rank has ended."""
    return f"node.{cell_index}.ended"


def calls(job: str, execution: str) -> str:
    return f"calls.{checked_id(job)}.exec.{checked_id(execution)}"


def all_facts(job: str) -> str:
    """Every fact of one job, whoever wrote it."""
    return f"facts.{checked_id(job)}.>"


def all_calls(job: str) -> str:
    return f"calls.{checked_id(job)}.>"


def start_order(job: str) -> str:
    """Where start orders wait for a runner (work queue)."""
    return f"work.start.{checked_id(job)}"
