"""Runs one service: settings, logs, readiness file, signals, exit status.

- `<home>/run/<service>.ready` exists only while the service is ready; the supervisor waits for it.
- SIGTERM and SIGINT cancel the main coroutine once; it has `GRACE_S` to put things away.
- An error that reaches the top is one log line and exit status 1; bad settings are status 2.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gyre.adapters.logging import configure_logging, get_logger
from gyre.adapters.settings import ServiceSettings, SettingsError, load_settings

# Longer than any append's round trip, shorter than the supervisor's patience before SIGKILL.
GRACE_S = 8.0

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a service's main may tell its surroundings."""

    service: str
    ready_file: Path
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def ready(self) -> None:
        """Says that the service serves: its state is folded and its loops run."""
        temporary = self.ready_file.with_suffix(f".{os.getpid()}")
        temporary.write_text(f"{os.getpid()}\n")
        temporary.replace(self.ready_file)
        get_logger().info("ready", pid=os.getpid())

    def not_ready(self) -> None:
        """Takes the readiness back."""
        self.ready_file.unlink(missing_ok=True)


Main = Callable[[SettingsT, Runtime], Coroutine[object, object, None]]
# Makes the event loop that a service runs on; None is asyncio's own.
LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


def run_service(
    main: Main[SettingsT],
    settings: SettingsT,
    *,
    service: str,
    loop_factory: LoopFactory = None,
) -> int:
    """Runs `main(settings, runtime)` until it returns, fails or is signalled; the exit status."""
    configure_logging(service, settings.log_level, secrets=[settings.key_secret.get_secret_value()])
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    runtime = Runtime(service=service, ready_file=settings.run_dir / f"{service}.ready")
    runtime.not_ready()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_supervise(main(settings, runtime), runtime))
    finally:
        runtime.not_ready()


def service_main(
    main: Main[SettingsT],
    kind: type[SettingsT],
    *,
    service: str,
    loop_factory: LoopFactory = None,
) -> None:
    """A service's `__main__`: reads the settings, runs, leaves with the exit status."""
    try:
        settings = load_settings(kind)
    except SettingsError as error:
        sys.stderr.write(f"{service}: {error}\n")
        sys.exit(2)
    name = settings.service_name or service
    sys.exit(run_service(main, settings, service=name, loop_factory=loop_factory))


async def _supervise(work: Coroutine[object, object, None], runtime: Runtime) -> int:
    log = get_logger()
    task = asyncio.create_task(work, name=runtime.service)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, task, runtime, number)
    stopping = asyncio.create_task(runtime.stopping.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        await asyncio.wait({task}, timeout=GRACE_S)
    if not task.done():
        log.error("stop_overdue", grace_s=GRACE_S)
        os._exit(1)
    if task.cancelled():
        log.info("stopped")
        return 0 if runtime.stopping.is_set() else 1
    if error := task.exception():
        cause = _innermost(error)
        log.error("failed", error=f"{type(cause).__name__}: {cause}", exc_info=error)
        return 1
    log.info("stopped")
    return 0


def _innermost(error: BaseException) -> BaseException:
    """What a task group wraps: its first failure says more than "1 sub-exception"."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _stop(task: asyncio.Task[None], runtime: Runtime, number: signal.Signals) -> None:
    """Cancels once: a second signal must not break into the clean-up of the first."""
    if runtime.stopping.is_set():
        return
    get_logger().info("stopping", signal=number.name)
    runtime.not_ready()
    runtime.stopping.set()
    task.cancel()
