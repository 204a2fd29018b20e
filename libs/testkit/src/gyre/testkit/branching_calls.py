"""Calls of executions that branch: agents that compact their history and start other agents.

A `Context` is one window of one agent: what it begins with, how many turns it has, which earlier
context's messages it shares. `calls_of_contexts` makes an execution's calls of them, as the proxy
records them. Sub-agents run while the one that started them waits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed, RequestRole, Segment, Span
from gyre.core.tree_nodes import GENERATION, node_id, sampled_node_id, token_array

_VOCABULARY = 50_000
# What opens an assistant's turn, the same everywhere.
_OPENER = (1, 2, 3)

# A context by its place in the execution's list, and a turn of it, from 0.
Moment: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One window of an agent, which ends with a turn.

    after: it begins when that turn is out; None: with the execution. of, num_shared: it begins with
    so many messages of context `of`. opening: roles of its own messages before its first turn.
    Between two turns stands a tool's result; num_reminders: messages of the system beside these,
    spread evenly.
    """

    role: RequestRole = "main"
    agent: str | None = None
    parent_agent: str | None = None
    after: Moment | None = None
    of: int | None = None
    num_shared: int = 0
    opening: tuple[str, ...]
    num_turns: int
    num_reminders: int = 0
    fork_reason: str | None = None

    @property
    def roles(self) -> list[str]:
        """Its own messages in order; "assistant" is a turn."""
        return [
            role
            for turn in range(self.num_turns)
            for role in (*self.messages_before(turn), "assistant")
        ]

    def messages_before(self, turn: int) -> tuple[str, ...]:
        """Roles of what stands between turn `turn` and the one before it."""
        if turn == 0:
            return self.opening
        return ("tool", *("system",) * (self._reminders_by(turn) - self._reminders_by(turn - 1)))

    def _reminders_by(self, turn: int) -> int:
        """Reminders before turn `turn` or earlier: as many of all as gaps of all gaps."""
        return turn * self.num_reminders // (self.num_turns - 1) if turn else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of a message by its role, the same for all of one role: `head` of a context's first
    message where it is the system's, `turn` of what is sampled."""

    head: int = 40
    system: int = 6
    user: int = 16
    tool: int = 12
    turn: int = 8

    def of(self, role: str, *, is_head: bool) -> int:
        if is_head:
            return self.head
        by_role = {"system": self.system, "user": self.user, "tool": self.tool}
        return by_role.get(role, self.turn)


def moments(contexts: Sequence[Context]) -> Iterator[Moment]:
    """The calls in the order of the log. Whoever starts an agent waits for it; then it goes on."""

    def played(place: int) -> Iterator[Moment]:
        for turn in range(contexts[place].num_turns):
            yield place, turn
            begun = [at for at, one in enumerate(contexts) if one.after == (place, turn)]
            for at in sorted(begun, key=lambda at: contexts[at].agent == contexts[place].agent):
                yield from played(at)

    for place, context in enumerate(contexts):
        if context.after is None:
            yield from played(place)


def calls_of_contexts(
    execution: str, contexts: Sequence[Context], *, seed: int = 0, sizes: Sizes | None = None
) -> list[Body]:
    """The execution's calls, its seal included; the same for the same arguments."""
    source = random.Random(f"{seed}-{execution}")
    recorder = _Recorder(execution, contexts, source, sizes or Sizes())
    for place, turn in moments(contexts):
        recorder.play(place, turn)
    num_calls = len(recorder.events)
    assert num_calls == sum(context.num_turns for context in contexts), "a context never begins"
    seal = CallsSealed(execution=execution, num_calls=num_calls, last_seq=num_calls)
    return [*recorder.events, seal]


@dataclass(slots=True)
class _Recorder:
    """events: in the order of the log. nodes: of each context played, its messages' node ids, the
    shared ones first. Mutated by `play` only."""

    execution: str
    contexts: Sequence[Context]
    source: random.Random
    sizes: Sizes
    events: list[Body] = field(default_factory=list)
    nodes: dict[int, list[str]] = field(default_factory=dict)

    def play(self, place: int, turn: int) -> None:
        """Records one turn with the messages that stand before it."""
        context = self.contexts[place]
        if turn == 0:
            shared = [] if context.of is None else self.nodes[context.of][: context.num_shared]
            self.nodes[place] = list(shared)
        nodes = self.nodes[place]
        segments: list[Segment] = []
        for role in context.messages_before(turn):
            tokens = self._tokens(self.sizes.of(role, is_head=not nodes and not segments))
            segments.append(_segment(_last(segments, nodes), role, tokens))
        opener = _segment(_last(segments, nodes), GENERATION, _OPENER)
        output = self._tokens(self.sizes.turn)
        call = self._call(context, nodes, [*segments, opener], output, first=turn == 0)
        nodes += [segment.node for segment in segments]
        nodes.append(call.node)

    def _tokens(self, num: int) -> tuple[int, ...]:
        return tuple(self.source.randrange(10, _VOCABULARY) for _ in range(num))

    def _call(
        self,
        context: Context,
        nodes: Sequence[str],
        segments: Sequence[Segment],
        output: tuple[int, ...],
        *,
        first: bool,
    ) -> CallRecorded:
        name = f"{self.execution}-c{len(self.events):05d}"
        span = Span(start=0, end=len(output), version=0, lineage=1, cell=0)
        event = CallRecorded(
            call=name,
            execution=self.execution,
            attempt=1,
            request_role=context.role,
            parent=nodes[-1] if nodes else None,
            segments=tuple(segments),
            node=sampled_node_id(segments[-1].node, name, output),
            output_ids=output,
            output_logprobs=tuple(-self.source.random() for _ in output),
            spans=(span,),
            num_input_tokens=0,
            num_cached_tokens=0,
            temperature=1.0,
            max_new_tokens=len(output) + 1,
            finish_reason="stop",
            outcome="committed",
            duration_s=0.1,
            agent=context.agent,
            parent_agent=context.parent_agent,
            fork_reason=context.fork_reason if first else None,
        )
        self.events.append(event)
        return event


def _segment(parent: str | None, role: str, tokens: tuple[int, ...]) -> Segment:
    node = node_id(parent, token_array(tokens))
    return Segment(node=node, parent=parent, role=role, token_ids=tokens)


def _last(segments: Sequence[Segment], nodes: Sequence[str]) -> str | None:
    """The node that comes before the next one."""
    return segments[-1].node if segments else nodes[-1] if nodes else None
