"""Why a request does not go on where an earlier one ended.

What an agent program does on purpose is explained:
- compaction: the request is sent to get a summary and begins with other messages; or it carries
  later turns over to a new beginning; or it is the first to leave the path since a summary;
- delegation: is a new sub-agent's, or equals another one's first;
- retry: asks again what was asked by a call whose answer did not arrive;
- new_attempt: is of another attempt;
- other_role: begins with other messages, as a side request (a title) or as the first of its role.

The others lose training signal, or tokens that the engine had cached:
- new_root: begins with other messages;
- tools_changed: begins with other tools;
- dropped_turn: goes on after an input without the turn that was sampled there;
- edited_history: has an assistant turn that was never sent, or other text in an old place;
- branch: continues what another request continues too;
- template: has a turn that the model family's template does not keep as it was sampled;
- repeat: is equal to one that was answered or still runs.

Roles are those of the harness's profile (`RequestRole`).
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from gyre.contracts.events.calls import CallRecorded, RequestRole
from gyre.core.matching.echoes import tools_key
from gyre.core.matching.walk import Walk
from gyre.core.tree import Tree
from gyre.core.tree_nodes import ASSISTANT, GENERATION, Node

EXPLAINED = frozenset(("compaction", "delegation", "retry", "new_attempt", "other_role"))
# What a summary that was just given explains: the client begins anew, from the summary.
_OF_COMPACTION = frozenset(
    ("new_root", "tools_changed", "dropped_turn", "edited_history", "branch", "other_role")
)


# Its family, and which of the harness's agents it is where that is said.
Agent: TypeAlias = tuple[RequestRole, str | None]


def family(role: RequestRole) -> RequestRole:
    """The agent that a request is of: main, sub-agent or other."""
    match role:
        case "main" | "main-summary":
            return "main"
        case "sub-agent" | "sub-agent-summary":
            return "sub-agent"
        case "other":
            return "other"


class ForkReasons:
    """What the reasons depend on beside the tree's shape. A fold over recorded calls, mutated by
    `recorded` only, so that it is the same after a restart."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._attempt = 0
        self._asked: set[Agent] = set()
        self._summaries: Counter[Agent] = Counter()
        for node in tree.sampled():
            one = node.sampled
            assert one is not None
            self._fold(one.attempt, one.request_role, one.agent, one.status, one.fork_reason)

    def recorded(self, call: CallRecorded) -> None:
        """The log has `call`."""
        self._fold(call.attempt, call.request_role, call.agent, call.outcome, call.fork_reason)

    def _fold(
        self, attempt: int, role: RequestRole, agent: str | None, status: str, reason: str | None
    ) -> None:
        if attempt > self._attempt:
            self._attempt = attempt
            self._asked.clear()
            self._summaries.clear()
        who = (family(role), agent)
        self._asked.add(who)
        if role != who[0]:
            self._summaries[who] += status == "committed"
        elif reason == "compaction" and self._summaries[who] > 0:
            self._summaries[who] -= 1

    def leaving(self, walk: Walk, node_role: str) -> str | None:
        """Why a new node of `node_role` below the cursor leaves an earlier path; None if it does
        not."""
        siblings = self._tree.children(walk.cursor)
        if not siblings:
            return None
        if 0 < self._attempt < walk.attempt:
            return "new_attempt"
        cursor = None if walk.cursor is None else self._tree.node(walk.cursor)
        if cursor is None or is_head(cursor):
            reason = self._at_root(walk)
        elif walk.agent is not None and self._is_new_sub_agent(walk):
            reason = "delegation"  # it may begin as another one did, or with its parent's history
        else:
            reason = self._below(walk, cursor, node_role, siblings)
        if reason in _OF_COMPACTION and self._is_compaction(walk):
            return "compaction"
        return reason

    def carrying(self, reason: str | None, source: str) -> str | None:
        """`reason`, now that a turn sampled below another prefix turns up in the request."""
        if reason in ("new_root", "branch"):
            opening = self._tree.node(source).parent
            assert opening is not None
            kept_all = self._is_first_turn(opening)
            return "edited_history" if kept_all or reason == "branch" else "compaction"
        return reason

    def reopened(self, opening: str, walk: Walk) -> str:
        """Why an equal request is asked again."""
        asked = [turn.sampled for turn in self._tree.children(opening) if turn.sampled]
        if asked and asked[-1].status != "committed":
            return "retry"
        if family(walk.role) == "sub-agent" and self._is_first_turn(opening):
            return "delegation"
        return "repeat"

    def _is_first_turn(self, opening: str) -> bool:
        """Whether no assistant's turn is above it."""
        return all(step.role != ASSISTANT for step in self._tree.path(opening))

    def _is_new_sub_agent(self, walk: Walk) -> bool:
        """Whether a sub-agent asks for the first time, as far as it can be told."""
        who = (family(walk.role), walk.agent)
        return who[0] == "sub-agent" and (walk.agent is None or who not in self._asked)

    def _at_root(self, walk: Walk) -> str:
        who = (family(walk.role), walk.agent)
        if self._is_new_sub_agent(walk):
            return "delegation"
        if who[0] == "other" or who not in self._asked:
            return "other_role"
        known = {
            node.known_by[0] if is_head(node) else tools_key(())
            for node in self._tree.children(None)
            if node.known_by
        }
        changed = bool(known) and walk.opening.tools not in known
        return "tools_changed" if changed else "new_root"

    def _below(self, walk: Walk, cursor: Node, node_role: str, siblings: tuple[Node, ...]) -> str:
        openings = [node for node in siblings if node.role == GENERATION]
        if node_role != ASSISTANT and openings:
            turns = [turn.sampled for one in openings for turn in self._tree.children(one.id)]
            if not turns:
                return "branch"
            lost = all(turn is not None and turn.status != "committed" for turn in turns)
            return "retry" if lost else "dropped_turn"
        if cursor.sampled is not None:
            return "branch"
        is_beginning = self._is_first_turn(cursor.id)
        return "delegation" if is_beginning and self._is_new_sub_agent(walk) else "edited_history"

    def _is_compaction(self, walk: Walk) -> bool:
        """The request is sent to get a summary, or is the first to leave its path after one."""
        who = (family(walk.role), walk.agent)
        return walk.role != who[0] or self._summaries[who] > 0


def is_head(node: Node) -> bool:
    """Whether the node is only what opens a conversation."""
    return node.parent is None and node.role == "system"
