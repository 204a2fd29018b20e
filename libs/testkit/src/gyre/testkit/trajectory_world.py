"""Everybody but the trajectory service, as far as it hears them: dispatch, calls, scores, batches.

`calls_of` makes one execution's calls, exact to the token, with the shapes that matter: turns on a
shared prefix, a compaction with its summary, a sub-agent on a root of its own, a title request, an
aborted and an undelivered call, an earlier attempt. `World` appends such facts to a journal.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import (
    CallRecorded,
    CallsSealed,
    CallUndelivered,
    RequestRole,
    Segment,
    Span,
)
from gyre.contracts.events.cells import BatchJoined
from gyre.contracts.events.executions import TerminationReason
from gyre.contracts.events.scheduling import BatchOpened, Dispatched, GroupPlan, JobSubmitted
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded, PlaceholderScored
from gyre.contracts.events.steps import MicroStepClaimed
from gyre.contracts.job import JobSpec
from gyre.core.tree_nodes import node_id, sampled_node_id
from gyre.testkit.facts import terminated

VOCABULARY = 500


def small_spec(*, admission: dict[str, Any] | None = None, **schedule: Any) -> JobSpec:
    """A valid spec: N=4, B=3, rows of 256 tokens, micro-steps of 512."""
    wanted = {"executions_per_group": 4, "groups_per_step": 3, "phi": 0, "mu": 1, "num_steps": 4}
    return JobSpec.model_validate(
        {
            "name": "small",
            "model": {"path": "/model"},
            "harness": {"profile": "llm", "timeout_s": 60},
            "tasks": {"train": "/tasks"},
            "cells": {"count": 2, "capacity": 8},
            "schedule": wanted | schedule,
            "admission": {"row_tokens": 256, "tokens_per_micro_step": 512} | (admission or {}),
        }
    )


@dataclass(slots=True)
class Caller:
    """One execution's calls, in order. Mutated by `call`."""

    execution: str
    rng: random.Random
    attempt: int = 1
    version: int = 0
    events: list[Body] = field(default_factory=list)

    def call(
        self,
        parent: str | None,
        *,
        role: RequestRole = "main",
        outcome: str = "committed",
        num_input: int = 12,
        num_output: int = 8,
    ) -> str:
        """One call below `parent`; the sampled node's id."""
        number = len(self.events)
        name = f"{self.execution}-c{number}"
        segments: list[Segment] = []
        for segment_role in ("tool" if parent else "system", "generation"):
            size = num_input if segment_role != "generation" else 3
            tokens = tuple(self.rng.randrange(VOCABULARY) for _ in range(size))
            above = segments[-1].node if segments else parent
            segments.append(
                Segment(
                    node=node_id(above, tokens), parent=above, role=segment_role, token_ids=tokens
                )
            )
        output = tuple(self.rng.randrange(VOCABULARY) for _ in range(num_output))
        node = sampled_node_id(segments[-1].node, name, output)
        self.events.append(
            CallRecorded(
                call=name,
                execution=self.execution,
                attempt=self.attempt,
                request_role=role,
                parent=parent,
                segments=tuple(segments),
                node=node,
                output_ids=output,
                output_logprobs=tuple(-self.rng.random() for _ in output),
                spans=(Span(start=0, end=len(output), version=self.version, lineage=1, cell=0),),
                num_input_tokens=0,
                num_cached_tokens=0,
                temperature=1.0,
                max_new_tokens=64,
                finish_reason="stop",
                outcome=outcome,
                duration_s=0.1,
            )
        )
        return node


def calls_of(execution: str, seed: int, *, attempt: int = 1, version: int = 0) -> list[Body]:
    """The calls of one execution, seal included. Its scored attempt is `attempt`."""
    rng = random.Random(f"{seed}-{execution}")
    caller = Caller(execution, rng, version=version)
    if attempt > 1:
        caller.call(None)
        caller.attempt = attempt
    here = caller.call(None, num_output=rng.randint(2, 12))
    for _ in range(rng.randint(0, 3)):
        here = caller.call(here, num_output=rng.randint(2, 12))
    kind = rng.randrange(5)
    if kind == 0:
        caller.call(here, role="main-summary")
        caller.call(caller.call(None, num_input=30))
    if kind == 1:
        caller.call(caller.call(None, role="sub-agent"), role="sub-agent")
    if kind == 2:
        caller.call(here, role="other")
        caller.call(here, outcome="aborted")
    if kind == 3:
        caller.call(here)
        undelivered = f"{execution}-c{len(caller.events) - 1}"
        caller.events.append(
            CallUndelivered(call=undelivered, execution=execution, reason="client left")
        )
    num_calls = sum(isinstance(event, CallRecorded) for event in caller.events)
    return [*caller.events, CallsSealed(execution=execution, num_calls=num_calls, last_seq=0)]


@dataclass(slots=True)
class World:
    """Appends, unguarded, what the other services of one job would say."""

    journal: Journal
    job: str
    spec: JobSpec
    seed: int = 0
    _count: int = 0

    async def say(self, subject: str, body: Body) -> int:
        self._count += 1
        cause = (self.job, "world", self._count)
        return await self.journal.append(
            subject, body, job=self.job, cause=cause, expected=None, causation="world"
        )

    async def submit(self) -> None:
        body = JobSubmitted(spec=self.spec, train_tasks=("t",), heldout_tasks=())
        await self.say(subjects.sched(self.job), body)

    async def dispatch(self, numbers: range, *, version: int = 0, kind: str = "training") -> None:
        groups = tuple(self.plan(number) for number in numbers)
        body = Dispatched(based_on=0, now=0.0, kind=kind, groups=groups, version=version, lineage=1)
        await self.say(subjects.sched(self.job), body)

    def plan(self, number: int) -> GroupPlan:
        group = f"{self.job}-g{number:04}"
        executions = range(self.spec.schedule.group_size)
        return GroupPlan(
            group=group, task="t", executions=tuple(f"{group}-e{place}" for place in executions)
        )

    async def finish(
        self,
        execution: str,
        reward: float | None,
        *,
        attempt: int = 1,
        calls: Sequence[Body] | None = None,
    ) -> None:
        """Calls, seal and score of one execution. reward None: excluded. calls: `calls_of` unless
        they are given."""
        for event in calls or calls_of(execution, self.seed, attempt=attempt):
            await self.say(subjects.calls(self.job, execution), event)
        await self.score(execution, reward, attempt=attempt)

    async def score(self, execution: str, reward: float | None, *, attempt: int = 1) -> None:
        """None: excluded."""
        body: Body = ExecutionExcluded(execution=execution, reason="broken scorer")
        if reward is not None:
            body = Evaluated(
                execution=execution,
                attempt=attempt,
                evaluation=f"{execution}-v1",
                artifact="0" * 64,
                branch="main",
                reward=reward,
            )
        await self.say(subjects.score(self.job, execution), body)

    async def terminate(self, execution: str, reason: TerminationReason = "completed") -> None:
        await self.say(subjects.run(self.job, execution), terminated(execution, reason))

    async def placeholder(self, execution: str) -> None:
        seal = CallsSealed(execution=execution, num_calls=0, last_seq=0)
        await self.say(subjects.calls(self.job, execution), seal)
        body = PlaceholderScored(execution=execution, reason="no attempt got anywhere")
        await self.say(subjects.score(self.job, execution), body)

    async def finish_group(self, number: int, rewards: tuple[float | None, ...]) -> None:
        for execution, reward in zip(self.plan(number).executions, rewards, strict=True):
            await self.finish(execution, reward)

    async def open_batch(self, batch: str, *, version: int = 0, lineage: int = 1) -> None:
        body = BatchOpened(
            based_on=0,
            now=0.0,
            batch=batch,
            step=version,
            version=version,
            lineage=lineage,
            num_groups=self.spec.schedule.groups_per_step,
        )
        await self.say(subjects.sched(self.job), body)

    async def join(self, batch: str, cell: int) -> None:
        body = BatchJoined(cell=cell, batch=batch, version=0, lineage=1)
        await self.say(subjects.cell(self.job, cell), body)

    async def claim(self, batch: str, index: int, cell: int = 0) -> None:
        body = MicroStepClaimed(batch=batch, index=index, cell=cell, epoch=1)
        await self.say(subjects.batch_claims(self.job, batch), body)
