"""An agent program in the real stack: runner, proxy and evaluator as they are, over a real
JetStream; scheduler and cells are played, the engines play a script.

One job, whose tasks a test writes. `execute` takes one execution from its order to its score. Proxy
and engines are in this process, or processes of their own where a test wants to kill them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.adapters.workqueue.jetstream import JetStreamWorkQueue
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import Terminated
from gyre.contracts.events.scheduling import Dispatched, GroupPlan, JobSubmitted
from gyre.contracts.events.scores import Evaluated
from gyre.evaluator import bootstrap as evaluator
from gyre.evaluator.settings import EvaluatorSettings
from gyre.runner import bootstrap as runner
from gyre.runner.profile_harnesses import ProfileHarnesses, read_environments, read_programs
from gyre.runner.sandbox.process import ProcessSandbox
from gyre.runner.settings import RunnerSettings
from gyre.testkit.execution_world import until
from gyre.testkit.harness_outcome import Outcome
from gyre.testkit.harness_processes import Engine, EngineProcess, ProxyProcess
from gyre.testkit.harness_script import Play, Scene
from gyre.testkit.harness_wire import Wire, running_wire
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.played_engine import PlayedEngine
from gyre.testkit.proxy_world import JOB, SECRET, Facts, running_proxy
from gyre.testkit.specs import job_spec

GROUP = f"{JOB}-g0000"
EXECUTION = f"{GROUP}-e0"
TASK = "task"


def harness_environments() -> Path:
    """The file that says where the installed harnesses are; it may not exist."""
    return Path(os.environ.get("GYRE_HARNESS_ENVS", Path(sys.prefix) / "gyre-env.json"))


def is_installed(profile: str) -> bool:
    """Whether the runner could start this harness here (`make harness`)."""
    path = harness_environments()
    if not path.exists():
        return False
    return profile in read_environments(path) | read_programs(path)


@dataclass(slots=True, kw_only=True)
class HarnessWorld:
    """Mutated by its methods. engines: cell 0 is the first, and serves the execution. proxy: where
    it is a process. wire: stands before the proxy if a test wants to see what is said."""

    root: Path
    home: Path
    facts: Facts
    queue: JetStreamWorkQueue
    play: Play
    engines: tuple[Engine, ...]
    proxy: ProxyProcess | None
    wire: Wire | None

    async def submit(
        self,
        profile: str,
        model: Path,
        *,
        instruction: str,
        test_sh: str,
        settings: dict[str, Any] | None = None,
        context_tokens: int = 200_000,
        max_new_tokens: int = 8192,
        timeout_s: float = 120.0,
    ) -> None:
        """The job with its one task, and its cells, one an engine."""
        task = self.root / "tasks" / TASK
        (task / "tests").mkdir(parents=True)
        (task / "tests" / "test.sh").write_text(test_sh)
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "instruction.md").write_text(instruction)
        harness = {"profile": profile, "timeout_s": timeout_s, "settings": settings or {}}
        spec = job_spec(
            heldout=False,
            cells=max(2, len(self.engines)),
            sections={
                "name": JOB,
                "tasks": {"train": str(task.parent)},
                "harness": harness | {"num_attempts": 1},
                "model": {"path": str(model), "context_tokens": context_tokens},
                "rollout": {"max_new_tokens": max_new_tokens, "call_timeout_s": 60.0},
            },
        )
        submitted = JobSubmitted(spec=spec, train_tasks=(TASK,), heldout_tasks=())
        await self.facts.append(subjects.sched(JOB), submitted)
        for cell, engine in enumerate(self.engines):
            await self.facts.rollout(cell, engine.url)

    async def execute(self, *, deadline_s: float = 200.0) -> Outcome:
        """One execution from its order to its reward."""
        await self.order()
        return await self.outcome(deadline_s=deadline_s)

    async def order(self) -> None:
        """Dispatches the group and orders its execution, on cell 0."""
        plan = GroupPlan(group=GROUP, task=TASK, executions=(EXECUTION,))
        dispatched = Dispatched.model_validate(
            {
                "based_on": 1,
                "now": 0.0,
                "kind": "training",
                "groups": (plan,),
                "version": 0,
                "lineage": 0,
            }
        )
        await self.facts.append(subjects.sched(JOB), dispatched)
        await self.facts.order(EXECUTION, 0)
        order = {"job": JOB, "execution": EXECUTION, "group": GROUP, "task": TASK, "seed": 1}
        await self.queue.put(subjects.start_order(JOB), json.dumps(order).encode(), EXECUTION)

    async def outcome(self, *, deadline_s: float = 200.0) -> Outcome:
        """Waits until the execution is scored."""

        async def scored() -> bool:
            return bool(await self._bodies(subjects.score(JOB, EXECUTION)))

        try:
            await until(scored, deadline_s=deadline_s)
        except TimeoutError:
            raise AssertionError("\n".join((self._told(), *self.logs()))) from None
        end = (await self._bodies(subjects.run(JOB, EXECUTION)))[-1]
        [score] = await self._bodies(subjects.score(JOB, EXECUTION))
        assert isinstance(end, Terminated)
        assert isinstance(score, Evaluated), score
        assert end.workspace is not None
        return Outcome(
            end=end,
            reward=score.reward,
            events=tuple(await self.facts.calls(EXECUTION)),
            workspace=self.home / "workspaces" / end.workspace,
            logs=self.logs(),
        )

    def logs(self) -> tuple[str, str]:
        """Standard output and error of the latest attempt."""
        folders = sorted((self.home / "workspaces").glob("*/*/a*/logs"))
        if not folders:
            return ("", "")
        names = ("stdout.log", "stderr.log")
        return (_text(folders[-1] / names[0]), _text(folders[-1] / names[1]))

    async def _bodies(self, subject: str) -> list[Body]:
        journal = self.facts.journal
        return [fact.body async for fact in journal.read(Stream.FACTS, (subject,))]

    def _told(self) -> str:
        played = [f"{each.cue} at {each.engine}" for each in self.play.played]
        return f"no score in time; played: {played}; surprises: {self.play.surprises}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """How a world is set up. num_engines: cells. engine_processes, proxy_process: these run apart,
    so that they can be killed; failpoint: where the proxy dies once by itself. wired: what the
    program and the proxy say to one another is kept. limits: of the proxy (`Limits`)."""

    num_engines: int = 1
    engine_processes: bool = False
    proxy_process: bool = False
    failpoint: str | None = None
    wired: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)


@asynccontextmanager
async def harness_world(
    root: Path, model: Path, scenes: Sequence[Scene], staging: Staging | None = None
) -> AsyncIterator[HarnessWorld]:
    """Everything around one execution, while the block lasts."""
    staging = staging or Staging()
    nats = NatsServer(root / "nats").start()
    try:
        await ensure_streams(nats.url)
        async with AsyncExitStack() as stack:
            log = JetStreamEventLog(nats.url, name="harness-world")
            stack.push_async_callback(log.close)
            queue = JetStreamWorkQueue(nats.url)
            stack.push_async_callback(queue.close)
            play = Play.write(root / "play", model, scenes)
            engines = await _engines(stack, play, staging)
            home = root / "home"
            url, proxy = await _proxy(stack, log, nats.url, home, staging)
            wire = await stack.enter_async_context(running_wire(url)) if staging.wired else None
            url = url if wire is None else wire.url
            await stack.enter_async_context(_services(home, log, queue, url, nats.url))
            yield HarnessWorld(
                root=root,
                home=home,
                facts=Facts(Journal(log, SystemClock(), DirectoryBlobStore(home / "blobs"))),
                queue=queue,
                play=play,
                engines=engines,
                proxy=proxy,
                wire=wire,
            )
    finally:
        nats.stop()


async def _engines(stack: AsyncExitStack, play: Play, staging: Staging) -> tuple[Engine, ...]:
    make = EngineProcess if staging.engine_processes else PlayedEngine
    engines = tuple(make(play) for _ in range(staging.num_engines))
    for engine in engines:
        stack.push_async_callback(engine.stop)
    await asyncio.gather(*(engine.start() for engine in engines))
    return engines


async def _proxy(
    stack: AsyncExitStack, log: JetStreamEventLog, nats_url: str, home: Path, staging: Staging
) -> tuple[str, ProxyProcess | None]:
    """Where it is, and its process if it has one."""
    if not staging.proxy_process:
        here = running_proxy(log, DirectoryBlobStore(home / "blobs"), **staging.limits)
        return (await stack.enter_async_context(here)).url, None
    process = ProxyProcess(nats_url, home, staging.limits)
    await stack.enter_async_context(process.running(staging.failpoint))
    return process.url, process


@asynccontextmanager
async def _services(
    home: Path, log: JetStreamEventLog, queue: JetStreamWorkQueue, proxy_url: str, nats_url: str
) -> AsyncIterator[None]:
    """Runner and evaluator; their errors surface at the end."""
    common = {"nats_url": nats_url, "database_url": "postgresql://nowhere", "home": str(home)}
    common["key_secret"] = SECRET
    settings = RunnerSettings.model_validate({**common, "proxy_url": proxy_url})
    environments = harness_environments()
    pythons = read_environments(environments)
    sandbox = ProcessSandbox(settings.run_dir, pythons)
    harnesses = ProfileHarnesses(
        settings=settings, pythons=pythons, programs=read_programs(environments)
    )
    runs = runner.build(
        settings, log=log, queue=queue, clock=SystemClock(), sandbox=sandbox, harnesses=harnesses
    )
    scores = evaluator.build(EvaluatorSettings.model_validate(common), log, SystemClock())
    async with running_services(sandbox, runs.run, scores.run):
        yield


@asynccontextmanager
async def running_services(
    sandbox: ProcessSandbox, *loops: Callable[[Callable[[], None]], Awaitable[None]]
) -> AsyncIterator[None]:
    """Services' loops while the block lasts; one that ended by itself is an error."""
    tasks = [asyncio.ensure_future(loop(lambda: None)) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await sandbox.close()
        assert all(isinstance(each, asyncio.CancelledError) for each in results), results


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
