"""Rows of `tree_nodes`: one a node of an execution's tree, upserted call by call.

kind: `input` or `sampled`. provenance: `external` for what the policy read, else the status of the
call that sampled it; only `committed` ones may be trained. call_id: the call that brought the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Integer, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gyre.adapters.journal import Fact
from gyre.adapters.logging import get_logger
from gyre.adapters.tables import logprob_bytes, token_bytes, tree_nodes
from gyre.contracts.events.calls import CallRecorded, CallsSealed, CallUndelivered
from gyre.core.tree_nodes import ASSISTANT

EXTERNAL = "external"
_TOKEN_BYTES = 4

Ends = dict[str, int]


class TreeRows:
    """Keeps, for executions that still call, where each node's path ends: a node's position is the
    end of its parent. After a restart an execution's ends are read back from its rows."""

    def __init__(self) -> None:
        self._ends: dict[str, Ends] = {}

    async def write(self, connection: AsyncConnection, facts: Sequence[Fact]) -> None:
        rows: list[dict[str, Any]] = []
        for fact in facts:
            match fact.body:
                case CallRecorded() as call:
                    ends = await self._ends_of(connection, call.execution)
                    rows.extend(_rows(fact.job, call, ends))
                case CallUndelivered() as undelivered:
                    await _flush(connection, rows)
                    await _set_provenance(connection, undelivered)
                case CallsSealed(execution=execution):
                    self._ends.pop(execution, None)
                case _:
                    continue
        await _flush(connection, rows)

    async def _ends_of(self, connection: AsyncConnection, execution: str) -> Ends:
        if execution not in self._ends:
            column = tree_nodes.c
            length = func.octet_length(column.token_ids, type_=Integer) / _TOKEN_BYTES
            found = await connection.execute(
                select(column.node_id, column.position + length).where(
                    column.execution == execution
                )
            )
            self._ends[execution] = {node: int(end) for node, end in found}
        return self._ends[execution]


def _rows(job: str, call: CallRecorded, ends: Ends) -> Iterator[dict[str, Any]]:
    """The call's new nodes; adds their ends to `ends`. A call below an unknown node has none."""
    if call.parent is not None and call.parent not in ends:
        get_logger().error("tree_damaged", execution=call.execution, call=call.call)
        return
    common = {"execution": call.execution, "job": job, "call_id": call.call}
    parent = call.parent
    for segment in call.segments:
        yield (
            common
            | _node(segment.node, parent, segment.token_ids, ends)
            | {
                "kind": "input",
                "role": segment.role,
                "logprobs": None,
                "provenance": EXTERNAL,
                "fork_reason": None,
                "spans": [],
            }
        )
        parent = segment.node
    yield (
        common
        | _node(call.node, parent, call.output_ids, ends)
        | {
            "kind": "sampled",
            "role": ASSISTANT,
            "logprobs": logprob_bytes(call.output_logprobs),
            "provenance": call.outcome,
            "fork_reason": call.fork_reason,
            "spans": [span.model_dump() for span in call.spans],
        }
    )


def _node(node: str, parent: str | None, token_ids: Sequence[int], ends: Ends) -> dict[str, Any]:
    position = 0 if parent is None else ends[parent]
    ends[node] = position + len(token_ids)
    return {
        "node_id": node,
        "parent": parent,
        "token_ids": token_bytes(token_ids),
        "position": position,
    }


async def _flush(connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
    """Inserts and empties `rows`; a node that is there already is the same node."""
    if rows:
        await connection.execute(insert(tree_nodes).on_conflict_do_nothing(), rows)
        rows.clear()


async def _set_provenance(connection: AsyncConnection, event: CallUndelivered) -> None:
    column = tree_nodes.c
    await connection.execute(
        update(tree_nodes)
        .where(
            column.execution == event.execution,
            column.call_id == event.call,
            column.kind == "sampled",
        )
        .values(provenance="undelivered")
    )
