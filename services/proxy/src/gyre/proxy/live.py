"""Executions that are not sealed, and their open calls: carriers, and how one comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field

from gyre.contracts.job import JobSpec
from gyre.core.matching import Matcher, Plan
from gyre.core.tree import Tree
from gyre.proxy.encoding import Codec
from gyre.proxy.executions import Execution
from gyre.proxy.generation import Generation
from gyre.proxy.recorder import CallLog
from gyre.proxy.requests import Answer
from gyre.proxy.turns import sent_turn


@dataclass(slots=True, kw_only=True)
class Live:
    """One execution that is not sealed: its tree, its log, its open calls.

    next_index: of the next call; also above every index that the log names, recorded or not.
    undelivered: calls whose answer did not arrive, so that no retry is given it again.
    """

    execution: Execution
    matcher: Matcher
    log: CallLog
    next_index: int = 0
    open: dict[str, OpenCall] = field(default_factory=dict)
    undelivered: set[str] = field(default_factory=set)
    background: set[asyncio.Task[None]] = field(default_factory=set)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Runs `work` beside the calls; the seal waits for it."""
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)


@dataclass(slots=True, kw_only=True)
class OpenCall:
    """A call that runs. num_waiting: requests that wait for its answer, a joined retry's too."""

    id: str
    attempt: int
    plan: Plan
    generation: Generation
    task: asyncio.Task[Answer] | None = None
    num_waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The job's part in a call."""

    spec: JobSpec
    codec: Codec


def restored(
    execution: Execution, tree: Tree, log: CallLog, codec: Codec, *, next_index: int
) -> Live:
    """An execution as its log leaves it: what was sent is read out of the sampled tokens."""
    live = Live(execution=execution, matcher=Matcher(tree), log=log, next_index=next_index)
    for node in tree.sampled():
        assert node.sampled is not None
        if node.sampled.status == "undelivered":
            live.undelivered.add(node.sampled.call)
        if node.sampled.status in ("committed", "undelivered"):
            turn = codec.parse(node.token_ids)
            live.matcher.sent(node.id, sent_turn(node.sampled.call, turn))
    return live
