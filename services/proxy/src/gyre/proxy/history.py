"""What GYRE_CALLS holds of executions that are not sealed: where the proxy left off before it
restarted. Folded once, at the start; afterwards the proxy is the only writer and knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.adapters.journal import Fact
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallsSealed, CallUndelivered
from gyre.core.tree import Tree


@dataclass(slots=True)
class Past:
    """One execution's calls in the log. Mutated by `History.evolve`."""

    tree: Tree = field(default_factory=Tree)
    last_sequence: int = 0
    next_index: int = 0


@dataclass(slots=True)
class History:
    """Mutated by `evolve` and `take`. sealed: executions whose trees are dropped."""

    pasts: dict[str, Past] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)

    def evolve(self, fact: Fact) -> None:
        """Folds one event of GYRE_CALLS."""
        match fact.body:
            case CallsSealed(execution=execution):
                self.sealed.add(execution)
                self.pasts.pop(execution, None)
            case CallRecorded(execution=execution) | CallRerouted(execution=execution) as event:
                past = self._past(execution, fact.sequence)
                past.tree.evolve(event)
                # Above every index in the log: a call that was rerouted and then lost with the
                # process keeps its name to itself.
                past.next_index = max(past.next_index, _index(event.call) + 1)
            case CallUndelivered(execution=execution) as event:
                self._past(execution, fact.sequence).tree.evolve(event)

    def take(self, execution: str) -> Past:
        """Hands over what is known of the execution; nothing if it had no call."""
        return self.pasts.pop(execution, None) or Past()

    def _past(self, execution: str, sequence: int) -> Past:
        past = self.pasts.setdefault(execution, Past())
        past.last_sequence = sequence
        return past


def _index(call: str) -> int:
    return int(call.rpartition("-c")[2])
