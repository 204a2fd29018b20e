"""Puts the runner together; `service` has its loops."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import Clock, SystemClock
from gyre.adapters.eventlog import EventLog
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.logging import get_logger
from gyre.adapters.runtime import Runtime
from gyre.adapters.workqueue import WorkQueue
from gyre.adapters.workqueue.jetstream import JetStreamWorkQueue
from gyre.runner.attempts import Attempts
from gyre.runner.errors import AlreadyRunning
from gyre.runner.executions import ExecutionLoop
from gyre.runner.harnesses import Harnesses
from gyre.runner.profile_harnesses import ProfileHarnesses, read_environments, read_programs
from gyre.runner.registry import Registry
from gyre.runner.sandbox import Sandbox
from gyre.runner.sandbox.process import ProcessSandbox
from gyre.runner.service import Runner
from gyre.runner.settings import RunnerSettings


def build(
    settings: RunnerSettings,
    *,
    log: EventLog,
    queue: WorkQueue,
    clock: Clock,
    sandbox: Sandbox,
    harnesses: Harnesses,
) -> Runner:
    """The runner over a log and a queue, with its workspaces under the settings' home."""
    journal = Journal(log, clock, DirectoryBlobStore(settings.blobs_dir))
    registry = Registry()
    attempts = Attempts(
        journal=journal,
        clock=clock,
        sandbox=sandbox,
        harnesses=harnesses,
        registry=registry,
        settings=settings,
    )
    executions = ExecutionLoop(
        journal=journal,
        clock=clock,
        registry=registry,
        attempts=attempts,
        retry_pause_s=settings.runner_retry_pause_s,
    )
    return Runner(
        journal=journal,
        queue=queue,
        registry=registry,
        executions=executions,
        incarnation=secrets.token_hex(8),
    )


async def main(settings: RunnerSettings, runtime: Runtime) -> None:
    """Run executions until cancelled."""
    with only_runner(settings.run_dir):
        pythons = read_environments(settings.harness_envs)
        sandbox = ProcessSandbox(settings.run_dir, pythons)
        log = JetStreamEventLog(settings.nats_url, name="gyre-runner")
        queue = JetStreamWorkQueue(settings.nats_url, name="gyre-runner-orders")
        runner = build(
            settings,
            log=log,
            queue=queue,
            clock=SystemClock(),
            sandbox=sandbox,
            harnesses=ProfileHarnesses(
                settings=settings,
                pythons=pythons,
                programs=read_programs(settings.harness_envs),
            ),
        )
        get_logger().info("sandbox", isolation=sandbox.isolation)
        try:
            await runner.run(runtime.ready)
        finally:
            await sandbox.close()
            await queue.close()
            await log.close()


@contextmanager
def only_runner(run_dir: Path) -> Iterator[None]:
    """Holds the stack's lock; the kernel releases it whatever becomes of this process.

    Raises AlreadyRunning.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "runner.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(f"{run_dir}: another runner owns this stack") from None
        yield
