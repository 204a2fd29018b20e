"""One tree per execution, in memory from its first call until nothing of it is left to train.

- `fold` adds a record; one that does not fit marks the execution as damaged, and it alone.
- `condemn` does so for a record or a fact that is lost, and for what shows when it is drawn.
- `sealed` answers from memory, or reads the execution's calls up to their seal from the log again:
  after a restore, or when a batch goes on after a restart.
- `drop` forgets a tree; the log still has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing

from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import EventLost, Fact, Journal
from gyre.adapters.logging import get_logger
from gyre.contracts import subjects
from gyre.core.records import RecordError, fold_record
from gyre.core.tree import Tree


class Trees:
    """Mutated by `fold`, `condemn` and `drop`. Token ids are int32 arrays: about 4 bytes a
    token of context and 12 a sampled one. damaged: execution -> what is wrong with which record."""

    def __init__(self, journal: Journal) -> None:
        self.damaged: dict[str, str] = {}
        self._journal = journal
        self._trees: dict[str, Tree] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def fold(self, execution: str, fact: Fact) -> bool:
        """Adds one event of the execution's calls, in the order of the log; False if it is the one
        that damages them."""
        if execution in self.damaged:
            return True
        tree = self._trees.setdefault(execution, Tree())
        try:
            fold_record(tree, execution, fact.sequence, fact.body)
        except RecordError as error:
            self.condemn(execution, str(error))
            return False
        return True

    def condemn(self, execution: str, error: str) -> None:
        """Nothing of it can be trained."""
        if execution not in self.damaged:
            get_logger().error("tree_damaged", execution=execution, error=error)
            self.damaged[execution] = error
            self._trees.pop(execution, None)

    def drop(self, executions: Iterable[str]) -> None:
        for execution in executions:
            self._trees.pop(execution, None)
            self.damaged.pop(execution, None)

    async def sealed(self, job: str, execution: str) -> Tree:
        """The whole tree. Raises RecordError when its records are damaged or not sealed."""
        if execution in self.damaged:
            raise RecordError(self.damaged[execution])
        tree = self._trees.get(execution)
        if tree is not None and tree.sealed:
            return tree
        return await self._read(job, execution)

    async def _read(self, job: str, execution: str) -> Tree:
        # What comes behind the seal of a ready group changes nothing: who has the tree in memory
        # does not fold it either.
        tree = Tree()
        subject = subjects.calls(job, execution)
        events = self._journal.read(Stream.CALLS, (subject,))
        try:
            async with aclosing(events) as facts:  # type: ignore[type-var]
                async for fact in facts:
                    fold_record(tree, execution, fact.sequence, fact.body)
                    if tree.sealed:
                        return tree
        except EventLost as error:
            raise RecordError(str(error)) from error
        raise RecordError(f"the calls of {execution} are not sealed")
