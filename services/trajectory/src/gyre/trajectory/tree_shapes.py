"""What the projection keeps of an execution's tree beside its rows: enough to place the next call.

A Shape takes the records that `gyre.core.records.fold_record` takes and refuses those that it
refuses (tests/unit/test_tree_shapes.py), without holding tokens: a few hundred bytes a node. One
exception: a NUL in a name, which Postgres cannot keep and training does not mind.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.adapters.tables import logprob_bytes, token_bytes
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed, CallUndelivered, Segment
from gyre.core.records import check, naming
from gyre.core.tree import TreeError, check_call
from gyre.core.tree_nodes import ASSISTANT

EXTERNAL = "external"
INPUT, SAMPLED = "input", "sampled"
UNDELIVERED = "undelivered"

Row = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Shape:
    """ends: tokens from the root to the end of each node, in the order of the log. calls: the node
    that each call sampled. is_plain: one agent went on where it was, so that nothing in it has a
    cause beside the tree. damaged: why its records make no tree; nothing is added from then on.

    Mutated by `fold`, and by whoever damages it.
    """

    execution: str
    job: str
    ends: dict[str, int] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    is_plain: bool = True
    sealed: bool = False
    damaged: str | None = None

    def fold(self, sequence: int, event: Body) -> tuple[list[Row], str | None]:
        """The new nodes' rows, and the node whose call turned out as undelivered.

        Raises RecordError for a record that does not fit; then nothing of it is added.
        """
        with naming(sequence, event):
            tokens = check(self, self.execution, event)
            match event:
                case CallRecorded():
                    return self._record(event, tokens), None
                case CallUndelivered(call=call):
                    if call not in self.calls:
                        raise TreeError(f"call {call!r} is not in the tree")
                    return [], self.calls[call]
                case CallsSealed():
                    self.sealed = True
        return [], None

    def row(self) -> Row:
        """Of `trees`."""
        return {
            "execution": self.execution,
            "job": self.job,
            "num_nodes": len(self.ends),
            "num_calls": len(self.calls),
            "sealed": self.sealed,
            "damaged": self.damaged,
        }

    def _record(self, call: CallRecorded, tokens: Sequence[array[int]]) -> list[Row]:
        """tokens: of each segment, then of what was sampled."""
        check_call(self.ends, call)
        if "\0" in "".join(_texts(call)):
            raise TreeError(f"call {call.call!r}: a name holds a NUL, which Postgres cannot keep")
        *read, output = tokens
        rows = [
            self._input(call, segment, token_ids)
            for segment, token_ids in zip(call.segments, read, strict=True)
            if segment.node not in self.ends
        ]
        rows.append(self._sampled(call, output))
        self.calls[call.call] = call.node
        self.is_plain = self.is_plain and is_plain(call.request_role, call.fork_reason)
        return rows

    def _input(self, call: CallRecorded, segment: Segment, token_ids: array[int]) -> Row:
        return self._node(call, segment.node, segment.parent, token_ids) | {
            "kind": INPUT,
            "role": segment.role,
            "provenance": EXTERNAL,
            "known_by": [bytes.fromhex(key) for key in segment.known_by],
        }

    def _sampled(self, call: CallRecorded, token_ids: array[int]) -> Row:
        parent = call.segments[-1].node if call.segments else call.parent
        return self._node(call, call.node, parent, token_ids) | {
            "kind": SAMPLED,
            "role": ASSISTANT,
            "provenance": call.outcome,
            "logprobs": logprob_bytes(call.output_logprobs),
            "fork_reason": call.fork_reason,
            "spans": [span.model_dump() for span in call.spans],
            "attempt": call.attempt,
            "request_role": call.request_role,
            "agent": call.agent,
            "parent_agent": call.parent_agent,
            "temperature": call.temperature,
        }

    def _node(
        self, call: CallRecorded, node: str, parent: str | None, token_ids: array[int]
    ) -> Row:
        """What both kinds have, and the columns that one of them leaves empty."""
        position = 0 if parent is None else self.ends[parent]
        ordinal = len(self.ends)
        self.ends[node] = position + len(token_ids)
        return _EMPTY | {
            "execution": self.execution,
            "node_id": node,
            "parent": parent,
            "job": self.job,
            "call_id": call.call,
            "token_ids": token_bytes(token_ids),
            "position": position,
            "ordinal": ordinal,
        }


def is_plain(request_role: str, fork_reason: str | None) -> bool:
    """Whether the call is its program's main agent's and goes on where an earlier one ended."""
    return request_role == "main" and fork_reason is None


_EMPTY: Row = {
    "logprobs": None,
    "fork_reason": None,
    "spans": [],
    "known_by": [],
    "attempt": None,
    "request_role": None,
    "agent": None,
    "parent_agent": None,
    "temperature": None,
    "caused_by": None,
    "cause": None,
}


def _texts(call: CallRecorded) -> list[str]:
    """What a client may have named."""
    return [call.agent or "", call.parent_agent or "", *(one.role for one in call.segments)]
