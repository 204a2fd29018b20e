"""Where an execution's paths end, and whose cache holds them: what its next calls go on from.

Kept in memory alone: a proxy that starts anew knows none, and loses no more than the saving.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gyre.contracts.events.calls import CallRecorded, Moved
from gyre.core.routing import Engine
from gyre.core.tree import Tree

# Of one execution: its main agent's, and those of the sub-agents that it runs at once.
MAX_TAILS = 8
# Titles and summaries are asked for once; nothing goes on from them.
_GOES_ON = ("main", "sub-agent")


Arrival = Callable[[], Awaitable[None]]
"""Returns when a copy that is under way, or begins now, is over or has taken too long."""


@dataclass(slots=True, kw_only=True, eq=False)
class Tail:
    """The end of a path, which the next call of its agent goes on from.

    node: sampled last. num_tokens: of the path, what its engine has computed: all but the last.
    weights: (lineage, version) that it was computed under. used: when its call ended, on the event
    loop's clock. home: where that was; engine: whose cache has the path by now. num_migrated,
    migration_s: tokens copied from the one to the other, and how long that took. arriving: while
    a copy is to be waited for.
    """

    node: str
    num_tokens: int
    weights: tuple[int, int]
    is_main: bool
    used: float
    home: Engine
    engine: Engine
    num_migrated: int = 0
    migration_s: float = 0.0
    arriving: Arrival | None = None

    def moved(self, cell: int, weights: tuple[int, int], num_cached: int) -> Moved | None:
        """What the route's change cost the call that went on from here, at `cell`, under `weights`,
        where `num_cached` of its tokens were in the cache. None where the route had not changed, or
        the weights had."""
        if weights != self.weights or (cell == self.home.cell and not self.num_migrated):
            return None
        return Moved(
            source=self.home.cell,
            destination=cell,
            tokens_at_source=self.num_tokens,
            tokens_migrated=self.num_migrated,
            tokens_prefilled_again=max(0, self.num_tokens - num_cached),
            migration_s=self.migration_s,
        )

    def computed_at(self, engine: Engine, weights: tuple[int, int]) -> None:
        """A call that came to nothing has left the path in this engine's cache."""
        self.home = self.engine = engine
        self.weights = weights
        self.num_migrated, self.migration_s = 0, 0.0


class Tails:
    """One execution's, by the node that each ends with. Mutated by `ended` only."""

    def __init__(self) -> None:
        self._tails: dict[str, Tail] = {}

    def before(self, tree: Tree, parent: str | None) -> Tail | None:
        """What a call below `parent` goes on from. O(the call's new messages)."""
        node = None if parent is None else tree.node(parent)
        while node is not None and node.sampled is None:
            node = None if node.parent is None else tree.node(node.parent)
        return None if node is None else self._tails.get(node.id)

    def cached_at(self, engine: Engine) -> list[Tail]:
        """Those whose cache lies at `engine`."""
        wanted = (engine.cell, engine.epoch)
        return [t for t in self._tails.values() if (t.engine.cell, t.engine.epoch) == wanted]

    def unused(self) -> tuple[Moved, ...]:
        """What was copied for calls that did not come, if none comes any more."""
        copied = [tail for tail in self._tails.values() if tail.num_migrated]
        return tuple(
            Moved(
                source=tail.home.cell,
                destination=tail.engine.cell,
                tokens_at_source=tail.num_tokens,
                tokens_migrated=tail.num_migrated,
                migration_s=tail.migration_s,
            )
            for tail in copied
        )

    def ended(
        self, event: CallRecorded, engine: Engine | None, tail: Tail | None, now: float
    ) -> None:
        """A call that went on from `tail` is in the log; `engine` sampled last."""
        if engine is None or not event.spans:
            return
        weights = event.spans[-1].lineage, event.spans[-1].version
        if event.outcome != "committed" or event.request_role not in _GOES_ON:
            if tail is not None:
                tail.computed_at(engine, weights)
            return
        if tail is not None:
            self._tails.pop(tail.node, None)
        self._tails[event.node] = Tail(
            node=event.node,
            num_tokens=event.num_input_tokens + len(event.output_ids) - 1,
            weights=weights,
            is_main=event.request_role == "main",
            used=now,
            home=engine,
            engine=engine,
        )
        if len(self._tails) > MAX_TAILS:
            # The main agent waits for its sub-agents: its path is the oldest, and needed.
            oldest = min(self._tails.values(), key=lambda one: (one.is_main, one.used))
            del self._tails[oldest.node]
