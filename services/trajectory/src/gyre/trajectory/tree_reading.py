"""An execution's tree out of its rows: the same nodes in the same order as the log's fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, case, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gyre.adapters.tables import logprobs_of, tokens_of, tree_nodes, trees
from gyre.contracts.events.calls import Span
from gyre.core.tree import Tree, TreeError, tree_of
from gyre.core.tree_nodes import Node, Sampled
from gyre.trajectory.tree_shapes import SAMPLED

_C = tree_nodes.c
# In the order in which `_node` and `_sampled` take them apart: a name costs more to look up.
_NODE = (_C.node_id, _C.parent, _C.role, _C.position, _C.kind)
_CALL = (
    *(_C.call_id, _C.attempt, _C.request_role, _C.temperature, _C.provenance, _C.fork_reason),
    *(_C.agent, _C.parent_agent),
)


async def read_tree(connection: AsyncConnection, execution: str) -> Tree:
    """As far as it is projected: for whoever works on the rows. The services themselves fold the
    log. Raises TreeError for damaged records, and where there are none."""
    return await _read(connection, execution, (_C.token_ids, _C.known_by, _C.logprobs, _C.spans))


async def read_outline(connection: AsyncConnection, execution: str) -> Tree:
    """As `read_tree`, at a third of the cost: what `gyre.core.causes` asks for. It has the tokens
    of turns and of what users say alone, and no logprobs, spans or keys."""
    is_asked_for = or_(_C.kind == SAMPLED, _C.role == "user")
    return await _read(connection, execution, (case((is_asked_for, _C.token_ids), else_=b""),))


async def _read(
    connection: AsyncConnection, execution: str, arrays: Sequence[ColumnElement[Any]]
) -> Tree:
    """arrays: tokens, and where they are wanted keys, logprobs and spans."""
    found = select(trees).where(trees.c.execution == execution)
    known = (await connection.execute(found)).one_or_none()
    if known is None:
        raise TreeError(f"no call of {execution} is in Postgres")
    if known.damaged is not None:
        raise TreeError(known.damaged)
    wanted = select(*_NODE, *_CALL, *arrays).where(_C.execution == execution).order_by(_C.ordinal)
    nodes: list[Node] = []
    num_calls = 0
    first_array = len(_NODE) + len(_CALL)
    for row in await connection.execute(wanted):
        tokens, *others = row[first_array:]
        sampled = None
        if row[4] == SAMPLED:
            sampled = _sampled(num_calls, others[1:], row[len(_NODE) : first_array])
            num_calls += 1
        known_by = tuple(others[0]) if others else ()
        nodes.append(_node(tokens, known_by, sampled, row[: len(_NODE)]))
    return tree_of(nodes, sealed=known.sealed)


def _node(
    tokens: bytes,
    known_by: tuple[bytes, ...],
    sampled: Sampled | None,
    columns: Sequence[Any],
) -> Node:
    """columns: those of `_NODE`."""
    node, parent, role, position, _ = columns
    return Node(
        id=node,
        parent=parent,
        role=role,
        token_ids=tokens_of(tokens),
        num_context_tokens=position,
        sampled=sampled,
        known_by=known_by,
    )


def _sampled(order: int, arrays: Sequence[Any], columns: Sequence[Any]) -> Sampled:
    """order: calls before this one. arrays: logprobs and spans, or nothing. columns: those of
    `_CALL`."""
    call, attempt, request_role, temperature, status, fork_reason, agent, parent_agent = columns
    logprobs, spans = arrays or (b"", ())
    return Sampled(
        call=call,
        attempt=attempt,
        request_role=request_role,
        logprobs=logprobs_of(logprobs),
        spans=tuple(Span.model_validate(span) for span in spans),
        temperature=temperature,
        status=status,
        order=order,
        fork_reason=fork_reason,
        agent=agent,
        parent_agent=parent_agent,
    )
