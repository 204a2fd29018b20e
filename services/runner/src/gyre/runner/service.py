"""The runner's loops.

| loop | consumes | produces | waits for |
|---|---|---|---|
| orders | work.start.* | started; one execution loop each | the work queue |
| facts | facts.*.sched | jobs known, executions cancelled | the log |
| executions | exits of harnesses, cancellations | facts.*.exec.*.run | each at most its time-out |

- The scheduler owns capacity: there are as many execution loops as it ordered and not one more.
- An order is acknowledged once `started` is in the log; from there the log is what a restart goes
  by. So at start every execution that is started and not terminated is taken up again.
- One runner owns a stack (`bootstrap` holds a lock).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from gyre.adapters.eventlog import SequenceConflict, Stream
from gyre.adapters.failpoints import failpoint
from gyre.adapters.journal import Journal
from gyre.adapters.logging import bind, get_logger
from gyre.adapters.workqueue import WorkItem, WorkQueue
from gyre.runner.executions import ExecutionLoop
from gyre.runner.registry import Registry

HISTORY_SUBJECTS = ("facts.*.sched", "facts.*.exec.*.run")
LIVE_SUBJECTS = ("facts.*.sched",)
ORDERS_FILTER = "work.start.*"
ORDERS_CONSUMER = "runner"
TAKE_BATCH = 64
TAKE_TIMEOUT_S = 5.0
# An order may overtake the facts it relies on by the lag between two streams: milliseconds. One
# that still relies on unknown facts after 30 s is from another log.
REDELIVER_AFTER_S = 0.2
MAX_DELIVERIES = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The scheduler's order to start an execution."""

    job: str
    execution: str
    group: str
    task: str

    @classmethod
    def parse(cls, data: bytes) -> Order | None:
        """None for a ticket that is no order."""
        try:
            raw = json.loads(data)
            return cls(**{name: str(raw[name]) for name in ("job", "execution", "group", "task")})
        except (ValueError, KeyError, TypeError):
            return None


class Runner:
    """Owns the loops; `incarnation` is new in every life of the process."""

    def __init__(
        self,
        *,
        journal: Journal,
        queue: WorkQueue,
        registry: Registry,
        executions: ExecutionLoop,
        incarnation: str,
    ) -> None:
        self._journal = journal
        self._queue = queue
        self._registry = registry
        self._executions = executions
        self._incarnation = incarnation

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Runs executions until it is cancelled; `on_ready` is called once the log is folded."""
        head = await self._catch_up()
        async with asyncio.TaskGroup() as group:
            for job, state in self._registry.unfinished():
                group.create_task(self._executions.run(job, state))
            group.create_task(self._follow(head))
            group.create_task(self._take_orders(group))
            on_ready()

    async def _catch_up(self) -> int:
        head = await self._journal.head(Stream.FACTS)
        async for fact in self._journal.read(Stream.FACTS, HISTORY_SUBJECTS, until=head):
            self._registry.fold_history(fact)
        num_unfinished = len(self._registry.unfinished())
        get_logger().info("caught_up", sequence=head, num_unfinished=num_unfinished)
        return head

    async def _follow(self, after: int) -> None:
        async for fact in self._journal.follow(Stream.FACTS, LIVE_SUBJECTS, after=after):
            self._registry.fold(fact)

    async def _take_orders(self, group: asyncio.TaskGroup) -> None:
        while True:
            items = await self._queue.take(
                ORDERS_FILTER, ORDERS_CONSUMER, TAKE_BATCH, TAKE_TIMEOUT_S
            )
            for item in items:
                group.create_task(self._start(item))

    async def _start(self, item: WorkItem) -> None:
        order = Order.parse(item.data)
        if order is None:
            get_logger().error("order_unreadable", subject=item.subject, id=item.msg_id)
            await item.ack()
            return
        if not self._registry.knows(order.job, order.group):
            await self._put_back(item, order)
            return
        key = (order.job, order.execution)
        if self._registry.never_starts(key) or not self._registry.claim(key):
            await item.ack()
            return
        with bind(job=order.job, execution=order.execution):
            try:
                state = await self._executions.start(
                    order.job,
                    execution=order.execution,
                    group=order.group,
                    task=order.task,
                    incarnation=self._incarnation,
                )
            except SequenceConflict:
                get_logger().info("order_taken_before")
                await item.ack()
                return
            failpoint("runner.after_started")
            await item.ack()
        await self._executions.run(order.job, state)

    async def _put_back(self, item: WorkItem, order: Order) -> None:
        if item.deliveries < MAX_DELIVERIES:
            await item.nak(REDELIVER_AFTER_S)
            return
        get_logger().error("order_of_unknown_group", job=order.job, group=order.group)
        await item.ack()
