"""An execution's trajectory tree: its calls, joined where they share a prefix.

A node is one message's token segment, or that of the results of parallel tool calls, or what one
call sampled. The tree is a fold over `calls.<job>.exec.<E>`; the proxy's live tree and the
trajectory service's are the same code.

Invariants (properties `tito` and `targets`):
- the tokens of `path(node)`, joined, are the exact context the node's own tokens were read or
  sampled in, and for a sampled node the exact input that the engine had;
- equal input segments below one parent are one node; equal outputs of two calls stay two;
- a sampled node is a target only while it is committed and delivered, and is in the tree once.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed, CallUndelivered, Segment
from gyre.core.tree_nodes import (
    ASSISTANT,
    CallStatus,
    Node,
    Sampled,
    call_tokens,
    node_id,
    token_array,
)


class TreeError(Exception):
    """A call that does not fit the tree built so far: its parent or node is unknown or taken."""


class Tree:
    """One execution's tree. Mutated by `evolve` and `add_*` only; nodes are immutable.

    `evolve` is O(the event's own tokens). Events are folded in the order of the log.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.calls: dict[str, str] = {}
        self.sealed = False
        self._children: dict[str | None, list[str]] = {None: []}

    def evolve(self, event: Body) -> None:
        """Folds one event of the execution's calls; the proxy's other events change nothing.

        A call folded twice is the same call. Raises TreeError for one that does not fit.
        """
        match event:
            case CallRecorded():
                self.add_call(event, call_tokens(event))
            case CallUndelivered():
                self._set_status(event.call, "undelivered")
            case CallsSealed():
                self.sealed = True
            case _:
                return

    def add_call(self, call: CallRecorded, tokens: Sequence[array[int]]) -> None:
        """Folds a call whose `call_tokens` are there already. Errors: as of `evolve`."""
        if call.call in self.calls:
            return
        check_call(self.nodes, call)
        *read, output = tokens
        for segment, token_ids in zip(call.segments, read, strict=True):
            self._add_segment(segment, token_ids)
        parent = call.segments[-1].node if call.segments else call.parent
        self._insert(
            Node(
                id=call.node,
                parent=parent,
                role=ASSISTANT,
                token_ids=output,
                num_context_tokens=self.num_path_tokens(parent),
                sampled=_sampled(call, order=len(self.calls)),
            )
        )
        self.calls[call.call] = call.node

    def add_segment(self, segment: Segment) -> Node:
        """Adds an input node, or returns the one that is already there.

        Raises TreeError when its parent is unknown.
        """
        return self._add_segment(segment, token_array(segment.token_ids))

    def add_input(
        self, parent: str | None, role: str, token_ids: array[int], known_by: tuple[bytes, ...] = ()
    ) -> Node:
        """As `add_segment`, with the id that follows from parent and tokens."""
        return self._add_input(node_id(parent, token_ids), parent, role, token_ids, known_by)

    def discard(self, node: str) -> None:
        """Takes back an input node that nothing hangs below. Raises TreeError for another one."""
        gone = self.node(node)
        if gone.sampled is not None or self._children.get(node):
            raise TreeError(f"node {node!r} was read or sampled")
        del self.nodes[node]
        self._children[gone.parent].remove(node)

    def node(self, node: str) -> Node:
        """Raises TreeError when there is no such node."""
        try:
            return self.nodes[node]
        except KeyError:
            raise TreeError(f"node {node!r} is not in the tree") from None

    def path(self, node: str | None) -> list[Node]:
        """From a root to `node`, both included; empty for None."""
        found = []
        nodes = self.nodes
        while node is not None:
            step = nodes.get(node) or self.node(node)
            found.append(step)
            node = step.parent
        found.reverse()
        return found

    def path_tokens(self, node: str | None) -> array[int]:
        """Token ids from the root to the end of `node`, int32."""
        return array("i", b"".join([step.token_ids for step in self.path(node)]))

    def context_tokens(self, node: str) -> array[int]:
        """Token ids before `node`: what its own tokens were conditioned on."""
        return self.path_tokens(self.node(node).parent)

    def num_path_tokens(self, node: str | None) -> int:
        """Tokens from the root to the end of `node`; 0 for None."""
        return 0 if node is None else self.node(node).num_path_tokens

    def children(self, node: str | None) -> tuple[Node, ...]:
        """In the order they were added; of None: the roots."""
        return tuple(self.nodes[child] for child in self._children.get(node, ()))

    def leaves(self) -> list[Node]:
        """Nodes without children, in the order they were added."""
        return [node for node in self.nodes.values() if not self._children.get(node.id)]

    def sampled(self) -> Iterator[Node]:
        """Sampled nodes in the order of their calls."""
        return (self.nodes[node] for node in self.calls.values())

    def targets(self, attempt: int | None = None) -> list[Node]:
        """Nodes to train, of all attempts or of one, in the order of their calls."""
        return [
            node
            for node in self.sampled()
            if node.is_target and node.sampled and attempt in (None, node.sampled.attempt)
        ]

    @property
    def num_calls(self) -> int:
        """Recorded calls, whatever came of them."""
        return len(self.calls)

    def _add_segment(self, segment: Segment, tokens: array[int]) -> Node:
        known_by = tuple(map(bytes.fromhex, segment.known_by))
        return self._add_input(segment.node, segment.parent, segment.role, tokens, known_by)

    def _add_input(
        self,
        identity: str,
        parent: str | None,
        role: str,
        tokens: array[int],
        known_by: tuple[bytes, ...],
    ) -> Node:
        known = self.nodes.get(identity)
        if known is not None:
            return known
        node = Node(
            id=identity,
            parent=parent,
            role=role,
            token_ids=tokens,
            num_context_tokens=self.num_path_tokens(parent),
            known_by=known_by,
        )
        self._insert(node)
        return node

    def _set_status(self, call: str, status: CallStatus) -> None:
        if call not in self.calls:
            raise TreeError(f"call {call!r} is not in the tree")
        node = self.nodes[self.calls[call]]
        assert node.sampled is not None
        self.nodes[node.id] = replace(node, sampled=replace(node.sampled, status=status))

    def _insert(self, node: Node) -> None:
        if node.id in self.nodes:
            raise TreeError(f"node {node.id!r} is already in the tree")
        if node.parent is not None and node.parent not in self.nodes:
            raise TreeError(f"node {node.id!r} hangs below {node.parent!r}, which is unknown")
        self.nodes[node.id] = node
        self._children.setdefault(node.parent, []).append(node.id)


def check_call(known: Container[str], call: CallRecorded) -> None:
    """Whether the call fits below the nodes that are `known`.

    Raises TreeError, or ValueError for a key that is none.
    """
    fresh: set[str] = set()
    parent = call.parent
    for segment in call.segments:
        if segment.parent != parent:
            raise TreeError(f"call {call.call!r}: segment {segment.node!r} is out of order")
        for key in segment.known_by:
            bytes.fromhex(key)
        if segment.node not in known and segment.node not in fresh:
            _check_parent(known, fresh, parent)
            fresh.add(segment.node)
        parent = segment.node
    if len(call.output_logprobs) != len(call.output_ids):
        raise TreeError(f"call {call.call!r}: one logprob per output token is needed")
    _check_parent(known, fresh, parent)
    if call.node in known or call.node in fresh:
        raise TreeError(f"node {call.node!r} is already in the tree")


def _check_parent(known: Container[str], fresh: Container[str], parent: str | None) -> None:
    if parent is not None and parent not in known and parent not in fresh:
        raise TreeError(f"node {parent!r} is not in the tree")


def _sampled(call: CallRecorded, *, order: int) -> Sampled:
    return Sampled(
        call=call.call,
        attempt=call.attempt,
        request_role=call.request_role,
        logprobs=array("d", call.output_logprobs),
        spans=call.spans,
        temperature=call.temperature,
        status=call.outcome,
        order=order,
        fork_reason=call.fork_reason,
        agent=call.agent,
        parent_agent=call.parent_agent,
    )


def fold(events: Iterable[Body]) -> Tree:
    """The tree of an execution's call events, in the order of the log."""
    tree = Tree()
    for event in events:
        tree.evolve(event)
    return tree


def tree_of(nodes: Iterable[Node], *, sealed: bool) -> Tree:
    """The tree that has these nodes, in the order they were added. Raises TreeError for a node that
    comes before its parent, or twice."""
    tree = Tree()
    for node in nodes:
        tree._insert(node)
        if node.sampled is not None:
            tree.calls[node.sampled.call] = node.id
    tree.sealed = sealed
    return tree
