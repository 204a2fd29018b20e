"""Executions of the paper's kind by the hundred: how long their agents work, and how often they
delegate and compact. Lengths are those of `tree_case`; a job's executions differ around them.

`contexts_of` draws one execution, `outline` is its tree as admission sees it, without tokens.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gyre.contracts.events.calls import RequestRole
from gyre.core.admission import Candidates, Leaf
from gyre.testkit.branching_calls import Context, Moment, Sizes

_HEAD = ("system", "system", "user")
# What a window after a compaction begins with of the one before.
_NUM_KEPT = 2
# Messages of the first window behind the history that its summary covers.
_NUM_AFTER_DEMAND = 3
# The case has 71 reminders among 1,347 messages.
_REMINDERS = 71 / 1347


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Lengths in messages.

    branching: share of the executions that branch as the case does. Of these: window, the least and
    the most that an agent has before it compacts (the case's: 168 to 293); main, sub, medians of
    what an agent has in all, its windows together (464; 53 to 434); num_sub_agents, their mean
    number (5), Poisson. The others are one window of the main agent, of median `alone`, and at
    most a window long. spread: sigma of the lognormals.
    """

    branching: float
    window: tuple[int, int] = (168, 293)
    main: float = 464.0
    sub: float = 130.0
    num_sub_agents: float = 5.0
    alone: float = 130.0
    spread: float = 0.3


def contexts_of(profile: Profile, source: random.Random) -> tuple[Context, ...]:
    """One execution. Mutates `source` only."""
    if source.random() >= profile.branching:
        length = source.lognormvariate(math.log(profile.alone), profile.spread)
        return (_window(min(round(length), profile.window[1]), _HEAD),)
    contexts = _windows(profile, source, profile.main, first=0)
    mains = [(at, one.num_turns) for at, one in enumerate(contexts) if one.role == "main"]
    begun: list[Moment] = []
    for _ in range(_poisson(profile.num_sub_agents, source)):
        window, num_turns = source.choice(mains)
        begun.append((window, source.randrange(num_turns)))
    first = len(contexts)
    for number, moment in enumerate(sorted(begun), start=1):
        opened = _windows(profile, source, profile.sub, first=len(contexts))
        opened[0] = replace(opened[0], after=moment, fork_reason="delegation")
        if number > 1:
            # Sub-agents have their system text in common.
            opened[0] = replace(opened[0], of=first, num_shared=1, opening=_HEAD[1:])
        contexts += [replace(one, role=_sub(one), agent=f"a{number}") for one in opened]
    return tuple(contexts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """sizes[i]: tokens of node i, a message; the candidates' nodes are the same."""

    candidates: Candidates
    sizes: Sequence[int]

    def flat_tokens(self, paths: Sequence[Sequence[int]]) -> int:
        """The paths laid out one by one."""
        return sum(self.sizes[node] for path in paths for node in path)

    def tree_tokens(self, paths: Sequence[Sequence[int]]) -> int:
        """The same with each node once."""
        return sum(self.sizes[node] for node in set().union(*paths))


def outline(contexts: Sequence[Context], sizes: Sizes) -> Outline:
    """The tree of an execution that has these contexts."""
    parents: list[int | None] = []
    targets: list[int] = []
    tokens: list[int] = []
    leaves: list[Leaf] = []
    nodes: list[list[int]] = []
    for context in contexts:
        path = [] if context.of is None else nodes[context.of][: context.num_shared]
        for role in context.roles:
            parents.append(path[-1] if path else None)
            size = sizes.of(role, is_head=not path)
            tokens.append(size)
            targets.append(size if role == "assistant" else 0)
            path.append(len(parents) - 1)
        nodes.append(path)
        leaves.append(Leaf(node=path[-1], role=context.role))
    candidates = Candidates(parents=parents, targets=targets, leaves=leaves)
    return Outline(candidates=candidates, sizes=tokens)


def _windows(
    profile: Profile, source: random.Random, median: float, *, first: int
) -> list[Context]:
    """One agent's windows, as a main agent's, each but the last with its summary behind it. first:
    the place of the first one."""
    left = round(source.lognormvariate(math.log(median), profile.spread))
    contexts: list[Context] = []
    while True:
        room = source.randint(*profile.window) + _NUM_AFTER_DEMAND
        opening = _HEAD if not contexts else ("user",)
        num_messages = max(len(opening) + 1, min(left, room))
        window = _window(num_messages, opening)
        place = first + len(contexts)
        if contexts:
            window = replace(window, after=(place - 1, 0), of=place - 2, num_shared=_NUM_KEPT)
        contexts.append(window)
        left -= num_messages
        if left <= 0:
            return contexts
        num_path = window.num_shared + len(window.roles)
        contexts.append(
            Context(
                role="main-summary",
                after=(place, window.num_turns - 1),
                of=place,
                num_shared=num_path - _NUM_AFTER_DEMAND,
                opening=("user",),
                num_turns=1,
                fork_reason="compaction",
            )
        )


def _window(num_messages: int, opening: tuple[str, ...]) -> Context:
    """A window of about so many messages of its own."""
    reminders = round(num_messages * _REMINDERS)
    num_turns = max(1, (num_messages - len(opening) - reminders + 1) // 2)
    return Context(
        opening=opening,
        num_turns=num_turns,
        num_reminders=min(reminders, num_turns - 1),
        fork_reason=None if len(opening) > 1 else "compaction",
    )


def _poisson(mean: float, source: random.Random) -> int:
    """By the product of uniforms: as many as it takes to get below exp(-mean), less one."""
    number, product, least = 0, source.random(), math.exp(-mean)
    while product > least:
        number += 1
        product *= source.random()
    return number


def _sub(context: Context) -> RequestRole:
    return "sub-agent" if context.role == "main" else "sub-agent-summary"
