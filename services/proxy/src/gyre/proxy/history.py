"""What GYRE_CALLS holds of executions: which are sealed, looked up once at the start, and what one
that is not has in its subject, read when it is first asked about, or when another process has
written to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.adapters.eventlog.base import Stream
from gyre.adapters.journal import Fact, Journal
from gyre.contracts import subjects
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallsSealed, CallUndelivered
from gyre.core.tree import Tree


@dataclass(slots=True)
class Past:
    """One execution's calls in the log. Mutated by `evolve`.

    num_calls: call_recorded events. unsure: committed, and no later event says that they were
    delivered or not.
    """

    tree: Tree = field(default_factory=Tree)
    num_calls: int = 0
    last_sequence: int = 0
    next_index: int = 0
    unsure: set[str] = field(default_factory=set)
    sealed: bool = False

    def evolve(self, fact: Fact) -> None:
        """Folds one event of the execution's subject."""
        self.last_sequence = fact.sequence
        match fact.body:
            case CallsSealed():
                self.sealed = True
            case CallRecorded() as event:
                self._named(event.call)
                self.num_calls += 1
                self.tree.evolve(event)
                self.unsure.difference_update(event.delivered)
                if event.outcome == "committed":
                    self.unsure.add(event.call)
            case CallRerouted() as event:
                self._named(event.call)
            case CallUndelivered() as event:
                self.tree.evolve(event)
                self.unsure.discard(event.call)

    def _named(self, call: str) -> None:
        # Above every index in the log: a call that was rerouted and then lost with its process
        # keeps its name to itself.
        self.next_index = max(self.next_index, int(call.rpartition("-c")[2]) + 1)


async def sealed_executions(journal: Journal) -> set[str]:
    """Executions of which nothing follows. Of their calls no body is read: a start does not depend
    on what long finished jobs have left. Raises EventLogError."""
    return {
        event.subject.rpartition(".")[2]
        async for event in journal.outlines(Stream.CALLS)
        if event.type == CallsSealed.TYPE
    }


async def outlined(journal: Journal, job: str, execution: str) -> Past:
    """What a seal needs to know, and no more: the tree stays empty. So an execution whose bodies
    are lost is sealed like any other. Raises EventLogError."""
    past = Past()
    async for event in journal.outlines(Stream.CALLS, (subjects.calls(job, execution),)):
        past.last_sequence = event.sequence
        past.num_calls += event.type == CallRecorded.TYPE
        past.sealed = past.sealed or event.type == CallsSealed.TYPE
    return past


async def read_on(journal: Journal, job: str, execution: str, past: Past) -> Past:
    """Brings `past` up to the log. Raises EventLogError."""
    subject = subjects.calls(job, execution)
    if await journal.last_sequence(subject) > past.last_sequence:
        async for fact in journal.read(Stream.CALLS, (subject,), after=past.last_sequence):
            past.evolve(fact)
    return past
