"""What the other services say around an execution, for tests of the runner and the evaluator: a
task set and workspaces on disk, and a log into which facts and calls are put."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import EventLog, Stream
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed, CallUndelivered
from gyre.contracts.events.executions import (
    AttemptStarted,
    Started,
    TerminationReason,
)
from gyre.contracts.events.scheduling import Dispatched, GroupPlan, JobSubmitted
from gyre.testkit.facts import terminated
from gyre.testkit.specs import job_spec

JOB = "j1"


class ExecutionWorld:
    """One job, `j1`, over `log`, with task sets and a stack's home below `root`."""

    def __init__(self, root: Path, log: EventLog) -> None:
        self.root = root
        self.home = root / "home"
        self.log = log
        self.journal = Journal(log, SystemClock(), DirectoryBlobStore(self.home / "blobs"))
        self.env: dict[str, str] = {}  # what a service's process needs to know, if there is one
        self._num_said = 0

    def add_task(
        self, split: str, task: str, script: str, *, files: dict[str, str] | None = None
    ) -> Path:
        """A task directory whose scorer is `script` and whose environment holds `files`."""
        folder = self.root / split / task
        (folder / "tests").mkdir(parents=True)
        (folder / "tests" / "test.sh").write_text(script)
        (folder / "task.toml").write_text('version = "1.0"\n')
        (folder / "instruction.md").write_text(f"Solve {task}.\n")
        for name, text in (files or {}).items():
            path = folder / "environment" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    async def say(self, subject: str, body: Body) -> int:
        """Appends whatever another service would."""
        self._num_said += 1
        return await self.journal.append(
            subject, body, job=JOB, cause=("test", self._num_said), expected=None
        )

    async def submit(self, **sections: dict[str, Any]) -> None:
        """job_submitted; `sections` replaces whole sections of the spec."""
        tasks = {"train": str(self.root / "train"), "heldout": str(self.root / "heldout")}
        spec = job_spec(sections={"name": JOB, "tasks": tasks, **sections})
        body = JobSubmitted(spec=spec, train_tasks=(), heldout_tasks=())
        await self.say(subjects.sched(JOB), body)

    async def dispatch(
        self, group: str, task: str, *executions: str, is_heldout: bool = False
    ) -> None:
        """One group enters the queue."""
        plan = GroupPlan(group=group, task=task, executions=executions)
        kind = "heldout" if is_heldout else "training"
        body = Dispatched.model_validate(
            {
                "based_on": 1,
                "now": 0.0,
                "kind": kind,
                "groups": (plan,),
                "version": 0,
                "lineage": 0,
            }
        )
        await self.say(subjects.sched(JOB), body)

    async def run(self, execution: str, task: str, *, group: str = "g0", attempt: int = 1) -> Path:
        """The attempt starts, with the first one the execution; its new workspace is returned."""
        subject = subjects.run(JOB, execution)
        if attempt == 1:
            await self.say(subject, Started(execution=execution, group=group, task=task))
        path = f"{JOB}/{execution}/a{attempt}/workspace"
        await self.say(
            subject,
            AttemptStarted(execution=execution, attempt=attempt, key_id="k", workspace=path),
        )
        workspace = self.home / "workspaces" / path
        workspace.mkdir(parents=True)
        return workspace

    async def call(self, execution: str, node: str, *, attempt: int = 1) -> None:
        """A committed call that sampled `node`; its id is `c-<node>`."""
        body = CallRecorded(
            call=f"c-{node}",
            execution=execution,
            attempt=attempt,
            request_role="main",
            parent=None,
            segments=(),
            node=node,
            output_ids=(1,),
            output_logprobs=(-0.1,),
            spans=(),
            num_input_tokens=1,
            num_cached_tokens=0,
            temperature=1.0,
            max_new_tokens=8,
            finish_reason="stop",
            outcome="committed",
            duration_s=0.1,
        )
        await self.say(subjects.calls(JOB, execution), body)

    async def lose_answer(self, execution: str, node: str) -> None:
        """The answer of the call that sampled `node` did not arrive."""
        body = CallUndelivered(call=f"c-{node}", execution=execution, reason="dropped")
        await self.say(subjects.calls(JOB, execution), body)

    async def end(
        self, execution: str, reason: TerminationReason, *, attempt: int = 1, seal: bool = True
    ) -> None:
        """The execution terminates and, unless told otherwise, its calls are sealed."""
        body = terminated(execution, reason, attempt=attempt)
        await self.say(subjects.run(JOB, execution), body)
        if seal:
            await self.seal(execution)

    async def seal(self, execution: str) -> None:
        subject = subjects.calls(JOB, execution)
        facts = [fact async for fact in self.journal.read(Stream.CALLS, (subject,))]
        count = sum(isinstance(fact.body, CallRecorded) for fact in facts)
        last = facts[-1].sequence if facts else 0
        await self.say(subject, CallsSealed(execution=execution, num_calls=count, last_seq=last))

    async def runs(self, execution: str) -> list[Body]:
        """What the runner said of the execution."""
        return await self._bodies(subjects.run(JOB, execution))

    async def scores(self, execution: str) -> list[Body]:
        """What the evaluator said of the execution."""
        return await self._bodies(subjects.score(JOB, execution))

    async def _bodies(self, subject: str) -> list[Body]:
        return [fact.body async for fact in self.journal.read(Stream.FACTS, (subject,))]


async def until_written(path: Path, deadline_s: float = 30.0) -> None:
    """Waits until the file is there and not empty. Raises TimeoutError at the deadline."""

    async def written() -> bool:
        return _has_content(path)

    await until(written, deadline_s)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 30.0) -> None:
    """Waits for the condition. Raises TimeoutError at the deadline."""
    async with asyncio.timeout(deadline_s):
        while not await condition():
            await asyncio.sleep(0.02)
