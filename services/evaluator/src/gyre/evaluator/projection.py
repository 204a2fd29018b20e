"""Provenance in Postgres: the tables `evaluations` and `executions`, a projection of the facts.

Loop: consumes facts.*.sched and facts.*.exec.>, produces rows, waits for the log. Rows and
checkpoint are one transaction, so a kill anywhere neither loses nor repeats a row; the tables can
be emptied, with their checkpoint, and are made again. A database that is away is waited for: the
log keeps what it misses, and scoring goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import Executable, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import Fact, Journal
from gyre.adapters.logging import get_logger
from gyre.adapters.postgres import AlreadyProjected, DatabaseError, Projector
from gyre.adapters.tables import evaluations, executions
from gyre.contracts.events.executions import Started, Terminated
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.scheduling import (
    Dispatched,
    ExecutionsCancelled,
    GroupDropped,
    SurplusCancelled,
)
from gyre.contracts.events.scores import (
    Evaluated,
    EvaluationFailed,
    ExecutionExcluded,
    PlaceholderScored,
)
from gyre.evaluator.service import FACT_SUBJECTS

NAME = "evaluations"
# Facts of one transaction while the projection catches up.
BATCH_FACTS = 500
# A supervised database is back within seconds; after this the service fails and says so.
PATIENCE_S = 120.0
RETRY_PAUSE_S = 0.5


class Projection:
    """Folds facts into rows, from its checkpoint on."""

    def __init__(self, journal: Journal, projector: Projector) -> None:
        self._journal = journal
        self._projector = projector

    async def run(self) -> None:
        """Projects until it is cancelled. Raises DatabaseError when the database stays away."""
        checkpoint = await self._checkpoint()
        head = await self._journal.head(Stream.FACTS)
        batch: list[Fact] = []
        async for fact in self._journal.read(
            Stream.FACTS, FACT_SUBJECTS, after=checkpoint, until=head
        ):
            batch.append(fact)
            if len(batch) == BATCH_FACTS:
                await self._project(batch)
                batch = []
        await self._project(batch)
        async for fact in self._journal.follow(
            Stream.FACTS, FACT_SUBJECTS, after=max(checkpoint, head)
        ):
            await self._project([fact])

    async def _checkpoint(self) -> int:
        deadline = _now() + PATIENCE_S
        while True:
            try:
                return await self._projector.checkpoint(NAME)
            except DBAPIError as error:
                await _wait_for_the_database(error, deadline)

    async def _project(self, facts: list[Fact]) -> None:
        statements = [statement for fact in facts for statement in statements_of(fact)]
        if not statements:
            return
        deadline = _now() + PATIENCE_S
        while True:
            try:
                async with self._projector.transaction(NAME, facts[-1].sequence) as connection:
                    for statement in statements:
                        await connection.execute(statement)
                return
            except AlreadyProjected:
                # A commit whose acknowledgement was lost.
                return
            except DBAPIError as error:
                await _wait_for_the_database(error, deadline)


def statements_of(fact: Fact) -> list[Executable]:
    """The writes that a fact brings about; each leaves the same rows when it is repeated."""
    body, job, time = fact.body, fact.job, fact.envelope.time
    match body:
        case Dispatched():
            rows = [
                {"execution": name, "group_id": plan.group, "task": plan.task}
                for plan in body.groups
                for name in plan.executions
            ]
            queued = [row | {"job": job, "status": "queued"} for row in rows]
            return [insert(executions).values(queued).on_conflict_do_nothing()] if rows else []
        case ExecutionsCancelled() | SurplusCancelled() | GroupDropped():
            return [_of_execution(name, status="cancelled") for name in body.queued]
        case Started():
            return [_started(body, job, time)]
        case Terminated():
            return [
                _of_execution(
                    body.execution, status="terminated", reason=body.reason, ended_at=time
                )
            ]
        case Evaluated():
            row = _of_execution(body.execution, status="evaluated", reward=body.reward)
            return [row, _evaluation(body, job, time)]
        case EvaluationFailed():
            return [_evaluation(body, job, time)]
        case ExecutionExcluded():
            return [_of_execution(body.execution, status="excluded")]
        case FactLost(execution=str(execution)):
            return [_of_execution(execution, status="excluded")]
        case PlaceholderScored():
            return [_of_execution(body.execution, status="placeholder", reward=0.0)]
        case _:
            return []


def _started(body: Started, job: str, time: float) -> Executable:
    row = insert(executions).values(
        execution=body.execution,
        job=job,
        group_id=body.group,
        task=body.task,
        status="running",
        started_at=time,
    )
    new = {"status": row.excluded.status, "started_at": row.excluded.started_at}
    return row.on_conflict_do_update(index_elements=["execution"], set_=new)


def _of_execution(execution: str, **values: Any) -> Executable:
    return update(executions).where(executions.c.execution == execution).values(**values)


def _evaluation(body: Evaluated | EvaluationFailed, job: str, time: float) -> Executable:
    branch, status, reward = "", "failed", None
    detail: dict[str, Any] = {}
    match body:
        case Evaluated():
            branch, status, reward = body.branch, "valid", body.reward
            detail = dict(body.detail)
        case EvaluationFailed():
            detail = {"error": body.error, "try": body.num_tries}
    row = insert(evaluations).values(
        id=body.evaluation,
        job=job,
        execution=body.execution,
        attempt=body.attempt,
        artifact_digest=body.artifact,
        branch=branch,
        status=status,
        reward=reward,
        detail=detail,
        scorer=str(detail.get("scorer", "")),
        started_at=time - float(detail.get("seconds", 0.0)),
        finished_at=time,
    )
    return row.on_conflict_do_nothing()


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _wait_for_the_database(error: DBAPIError, deadline: float) -> None:
    """A pause after a lost connection; any other error is ours and raised again."""
    if not (error.connection_invalidated or _is_connection_error(error)):
        raise error
    reason = str(error.orig).strip().partition("\n")[0]
    if _now() > deadline:
        raise DatabaseError(f"no Postgres within {PATIENCE_S:g} s: {reason}") from error
    get_logger().warning("database_away", error=reason)
    await asyncio.sleep(RETRY_PAUSE_S)


def _is_connection_error(error: DBAPIError) -> bool:
    # psycopg: OperationalError without an SQLSTATE, or class 08 (connection) or 57P (shutdown).
    state = getattr(error.orig, "sqlstate", None)
    return type(error).__name__ == "OperationalError" and (
        state is None or state.startswith(("08", "57P"))
    )
