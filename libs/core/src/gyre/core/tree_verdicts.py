"""Why the tokens of a node are trained, or are not.

| verdict of a node | its tokens |
|---|---|
| context | were not sampled here: they are read, never trained |
| trained | are targets of the path that carries them |
| not_drawn | would be targets; all J_max paths were drawn without them |
| too_long | would be targets, of paths longer than `admission.row_tokens` alone |
| other_role | sampled for what the program asks for itself |
| other_attempt | sampled in an attempt that was not scored |
| undelivered, aborted, superseded, failed | sampled by a call that was not answered |
| empty | none were sampled |
| not_trained | would be targets, of an execution that trains nothing (`Fate.out` says why) |
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from gyre.contracts.events.calls import RequestRole
from gyre.core.samples import Choice, NoTarget, no_target
from gyre.core.tree import Tree

Verdict = Literal[NoTarget, "trained", "not_drawn", "too_long", "not_trained"]


def verdicts_of(
    tree: Tree, attempt: int, choice: Choice | None, admitted_roles: Collection[RequestRole]
) -> dict[str, Verdict]:
    """Of every node. attempt: the scored one. choice: admission's, None where nothing is drawn.
    admitted_roles: the harness profile's classes."""
    carriers = carriers_of(choice)
    reachable = set() if choice is None else _reachable(choice)
    found: dict[str, Verdict] = {}
    for node in tree.nodes.values():
        if node.id in carriers:
            found[node.id] = "trained"
        elif (reason := no_target(node, attempt, admitted_roles)) is not None:
            found[node.id] = reason
        elif choice is None:
            found[node.id] = "not_trained"
        else:
            found[node.id] = "not_drawn" if node.id in reachable else "too_long"
    return found


def _reachable(choice: Choice) -> set[str]:
    """Nodes on a path that could have been drawn."""
    found: set[int] = set()
    for leaf in choice.candidates.leaves:
        here: int | None = leaf.node
        while here is not None and here not in found:
            found.add(here)
            here = choice.candidates.parents[here]
    return {choice.nodes[place].id for place in found}


def carriers_of(choice: Choice | None) -> dict[str, int]:
    """Sampled node -> number of the path that carries its targets."""
    if choice is None:
        return {}
    return {
        choice.nodes[place].id: number
        for number, one in enumerate(choice.admitted, start=1)
        for place in one.fresh
    }
