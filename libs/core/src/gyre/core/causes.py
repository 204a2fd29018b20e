"""Causal parents in a trajectory tree: which turn made the program ask what it asked next.

A tree's edges say which context a call was sampled in, and nothing of why it was asked: a sub-agent
begins on a root of its own, since its system prompt is another, and yet a turn of its parent
started it. Causes are kept beside the tree for that reason. They change no path and no target.

| kind | the call | its cause |
|---|---|---|
| delegation | a sub-agent's first | the turn of the agent that started it |
| summary | a demand for a summary | the last turn that the summary covers |
| continuation | the first after a compaction | the summary that it goes on from |

They are read from what the harness's profile recorded: roles, names of agents, reasons of forks.
A harness that does not name its agents has one main agent, which started each sub-agent. An agent
that goes on while its sub-agents work may have had several turns since it started one: of its last
turns the one whose words the sub-agent was given counts, the latest where that does not tell.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gyre.core.matching.reasons import family
from gyre.core.tree import Tree
from gyre.core.tree_nodes import Node, Sampled

CauseKind = Literal["delegation", "summary", "continuation"]

# How far back a delegating turn is looked for: an agent that does not wait has had a few turns when
# the first answer to its sub-agent is in, not many.
_LAST_TURNS = 8
# Words in common are counted by runs of so many tokens: long enough that chance has no part in it,
# short enough to survive that the task is JSON where it was sampled and text where it is read.
_RUN_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """node: the sampled node that made its program ask."""

    node: str
    kind: CauseKind


@dataclass(slots=True, kw_only=True)
class _Agent:
    """One agent's calls so far. turns, summary: the latest that the client has had; summary is None
    when nothing waits for its continuation. begun: whether a call of it was answered."""

    parent: _Agent | None = None
    begun: bool = False
    turns: deque[Node] = field(default_factory=lambda: deque(maxlen=_LAST_TURNS))
    summary: Node | None = None


def causes(tree: Tree) -> dict[str, Cause]:
    """By sampled node; calls that only go on where an earlier one ended have none. O(calls), for a
    call of an agent without a name also O(nodes) up to the turn it goes on from, and O(tokens) of
    the last turns before each delegation."""
    reader = _Reader(tree)
    for node in tree.sampled():
        reader.read(node)
    return reader.found


class _Reader:
    """Calls in the order of the log. Mutated by `read` only."""

    def __init__(self, tree: Tree) -> None:
        self.found: dict[str, Cause] = {}
        self._tree = tree
        self._attempt = 0
        self._main = _Agent()
        self._named: dict[str, _Agent] = {}
        # Of agents without a name: who sampled a node, for the calls below it.
        self._of_node: dict[str, _Agent] = {}
        self._last_unnamed: _Agent | None = None
        # What caused a call that is asked again, by the context of both.
        self._at: dict[str | None, Cause] = {}

    def read(self, node: Node) -> None:
        one = node.sampled
        assert one is not None
        if one.attempt != self._attempt:
            self._begin(one.attempt)
        if family(one.request_role) == "other":
            return
        agent = self._agent(node, one)
        self._of_node[node.id] = agent
        cause = self._cause(node, one, agent)
        if cause is not None:
            self.found[node.id] = self._at[node.parent] = cause
        if one.status == "committed":
            _answered(agent, node, one)

    def _begin(self, attempt: int) -> None:
        """Another attempt knows nothing of the ones before."""
        self._attempt = attempt
        self._main = _Agent()
        self._named.clear()
        self._of_node.clear()
        self._last_unnamed = None
        self._at.clear()

    def _agent(self, node: Node, one: Sampled) -> _Agent:
        if family(one.request_role) == "main":
            return self._main
        if one.agent is None:
            return self._unnamed(node, one)
        if one.agent not in self._named:
            # A name that no sub-agent has is the main agent's.
            parent = self._named.get(one.parent_agent or "", self._main)
            self._named[one.agent] = _Agent(parent=parent)
        return self._named[one.agent]

    def _unnamed(self, node: Node, one: Sampled) -> _Agent:
        """The sub-agent whose turn the call goes on from, else the last one if it compacts its
        history, else a new one."""
        for step in self._above(node):
            above = self._of_node.get(step.id)
            if above is not None and above is not self._main:
                return above
        last = self._last_unnamed
        if last is not None and one.fork_reason in ("compaction", "retry"):
            return last
        self._last_unnamed = _Agent(parent=self._main)
        return self._last_unnamed

    def _cause(self, node: Node, one: Sampled, agent: _Agent) -> Cause | None:
        if one.request_role != family(one.request_role):
            last = agent.turns[-1] if agent.turns else None
            return None if last is None else Cause(node=last.id, kind="summary")
        if agent.parent is not None and not agent.begun:
            turn = self._delegating(node, agent.parent.turns)
            return None if turn is None else Cause(node=turn.id, kind="delegation")
        if agent.summary is not None and one.fork_reason == "compaction":
            return Cause(node=agent.summary.id, kind="continuation")
        return self._at.get(node.parent) if one.fork_reason == "retry" else None

    def _delegating(self, node: Node, turns: Sequence[Node]) -> Node | None:
        if len(turns) < 2:
            return turns[-1] if turns else None
        given = _runs(self._given(node))
        # The latest of those with the most in common.
        return max(reversed(turns), key=lambda turn: len(given & _runs(turn.token_ids)))

    def _given(self, node: Node) -> array[int]:
        """What the user says to the sub-agent, up to its first turn."""
        said = array("i")
        for step in self._above(node):
            if step.sampled is not None:
                break
            if step.role == "user":
                said = step.token_ids + said
        return said

    def _above(self, node: Node) -> Iterator[Node]:
        """From its parent up to the root."""
        parent = node.parent
        while parent is not None:
            step = self._tree.node(parent)
            yield step
            parent = step.parent


def _answered(agent: _Agent, node: Node, one: Sampled) -> None:
    """The client has the call's answer."""
    agent.begun = True
    if one.request_role != family(one.request_role):
        agent.summary = node
        return
    agent.turns.append(node)
    if one.fork_reason == "compaction":
        agent.summary = None


def _runs(token_ids: array[int]) -> set[bytes]:
    """Runs of _RUN_TOKENS token ids, as the bytes of them."""
    width = _RUN_TOKENS * token_ids.itemsize
    raw = token_ids.tobytes()
    return {raw[at : at + width] for at in range(0, len(raw) - width + 1, token_ids.itemsize)}
