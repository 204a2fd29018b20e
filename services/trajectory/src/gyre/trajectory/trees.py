"""One tree per execution, in memory from its first call until nothing of it is left to train.

- `fold` adds an event; a call that does not fit marks the execution as damaged, and it alone.
- `lose` does so for a call whose body is lost.
- `sealed` answers from memory, or reads the execution's calls from the log again: after a restore,
  or when a batch goes on after a restart.
- `drop` forgets a tree; the log still has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import BodyLost, Journal
from gyre.adapters.logging import get_logger
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.core.tree import Tree, TreeError


class Trees:
    """Mutated by `fold` and `drop`. Token ids are int32 arrays: about 4 bytes a token of context
    and 12 a sampled one."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._trees: dict[str, Tree] = {}
        self._damaged: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def fold(self, execution: str, body: Body) -> None:
        """Adds one event of the execution's calls, in the order of the log."""
        if execution in self._damaged:
            return
        tree = self._trees.setdefault(execution, Tree())
        try:
            _evolve(tree, body)
        except TreeError as error:
            self._damage(execution, error)

    def lose(self, error: BodyLost) -> None:
        """An event of an execution's calls will never be folded."""
        self._damage(error.subject.rpartition(".")[2], error)

    def drop(self, executions: Iterable[str]) -> None:
        for execution in executions:
            self._trees.pop(execution, None)
            self._damaged.pop(execution, None)

    async def sealed(self, job: str, execution: str) -> Tree:
        """The whole tree. Raises TreeError when its records are damaged or not sealed."""
        if execution in self._damaged:
            raise TreeError(self._damaged[execution])
        tree = self._trees.get(execution)
        if tree is not None and tree.sealed:
            return tree
        return await self._read(job, execution)

    async def _read(self, job: str, execution: str) -> Tree:
        tree = Tree()
        subject = subjects.calls(job, execution)
        try:
            async for fact in self._journal.read(Stream.CALLS, (subject,)):
                _evolve(tree, fact.body)
        except BodyLost as error:
            raise TreeError(str(error)) from error
        if not tree.sealed:
            raise TreeError(f"the calls of {execution} are not sealed")
        return tree

    def _damage(self, execution: str, error: Exception) -> None:
        get_logger().error("tree_damaged", execution=execution, error=str(error))
        self._damaged[execution] = str(error)
        self._trees.pop(execution, None)


def _evolve(tree: Tree, body: Body) -> None:
    """Folds `body`. Raises TreeError, also for a seal that counts other calls than are here."""
    tree.evolve(body)
    if isinstance(body, CallsSealed) and body.num_calls != tree.num_calls:
        raise TreeError(f"sealed with {body.num_calls} calls, {tree.num_calls} are recorded")
