"""Folding one record of an execution's calls into its tree, with what it must hold on its own.

- Damaged: bytes that are no event or a body that is gone (both met by who reads the log), tokens
  that are not those of their node's id, logprobs that are not as many, another execution's record.
- Out of order: a parent that no earlier record brought, anything behind the seal.
- Duplicated: a call that is recorded twice.
- Missing: a parent that no record brought, a seal that counts other calls.

Each is a RecordError, which names the record.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed
from gyre.core.tree import Tree, TreeError
from gyre.core.tree_nodes import call_tokens, node_id, sampled_node_id


class RecordError(Exception):
    """A record that does not fit the execution's others: its calls cannot be trained."""


class Known(Protocol):
    """What the records so far came to: a tree, or what is kept of one."""

    sealed: bool
    calls: dict[str, str]


def fold_record(tree: Tree, execution: str, sequence: int, body: Body) -> None:
    """Adds it to `tree`. sequence: the stream's. Raises RecordError; the tree is of no use then."""
    with naming(sequence, body):
        tokens = check(tree, execution, body)
        if isinstance(body, CallRecorded):
            tree.add_call(body, tokens)
        else:
            tree.evolve(body)


@contextmanager
def naming(sequence: int, body: Body) -> Iterator[None]:
    """Raises RecordError, which names the record, for what does not fit inside."""
    try:
        yield
    except (TreeError, ValueError, OverflowError) as error:
        # The latter two: a number that is no token, a key that is none.
        raise RecordError(f"record {sequence}, {_name(body)}: {error}") from error


def check(tree: Known, execution: str, body: Body) -> list[array[int]]:
    """What a tree alone does not ask for. Raises TreeError.

    Returns the `call_tokens` of a call; nothing else has any."""
    if getattr(body, "execution", execution) != execution:
        raise TreeError(f"it is of another execution, {body.execution!r}")  # type: ignore[attr-defined]
    if tree.sealed:
        raise TreeError("it comes behind the seal")
    match body:
        case CallRecorded():
            return _check_call(tree, body)
        case CallsSealed() if body.num_calls != len(tree.calls):
            raise TreeError(f"sealed with {body.num_calls} calls, {len(tree.calls)} are recorded")
        case _:
            return []


def _check_call(tree: Known, call: CallRecorded) -> list[array[int]]:
    if call.call in tree.calls:
        raise TreeError("it is recorded twice")
    tokens = call_tokens(call)
    for segment, token_ids in zip(call.segments, tokens, strict=False):
        if segment.node != node_id(segment.parent, token_ids):
            raise TreeError(f"the tokens of node {segment.node!r} are not those it is named for")
    parent = call.segments[-1].node if call.segments else call.parent
    if call.node != sampled_node_id(parent, call.call, tokens[-1]):
        raise TreeError(f"the tokens of node {call.node!r} are not those it is named for")
    return tokens


def _name(body: Body) -> str:
    return f"call {body.call}" if isinstance(body, CallRecorded) else body.TYPE
