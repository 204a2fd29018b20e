"""The model thread: runs the scheduler, takes commands between steps, reports progress.

    HTTP thread (asyncio)              model thread
      post(command)  ----mailbox---->  commands, in order
      await call(command) <--future--  its result or error
      progress(requests) <-----------  step: requests that got a token or ended

The thread sleeps on a condition while there is neither a command nor work, so an idle engine
costs no CPU; under an emulated speed it sleeps until the next token is due, or a command comes.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import torch

from gyre.cell_agent.engine.local.errors import LocalEngineError
from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.scheduler import Scheduler

T = TypeVar("T")
Command = Callable[[Scheduler], T]


class EngineThread:
    """Start with `start`, end with `stop`. `progress` and `failed` run in the event loop.

    `failed` is called with any error that is not an answer to a command: the engine is then
    no longer trustworthy and its process should end.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        loop: asyncio.AbstractEventLoop,
        progress: Callable[[list[Request]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._loop = loop
        self._progress = progress
        self._failed = failed
        self._mailbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin stepping."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ask the thread to end after its current step and wait for it."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def post(self, command: Command[object]) -> None:
        """Run `command` between steps; its errors are fatal to the engine."""
        self._put(lambda: command(self._scheduler))

    async def call(self, command: Command[T]) -> T:
        """Run `command` between steps; return its result or raise its error here."""
        future: asyncio.Future[T] = self._loop.create_future()

        def answer() -> None:
            try:
                result = command(self._scheduler)
            except LocalEngineError as error:
                self._loop.call_soon_threadsafe(_fail, future, error)
            else:
                self._loop.call_soon_threadsafe(_settle, future, result)

        self._put(answer)
        return await future

    def _put(self, job: Callable[[], object]) -> None:
        with self._wake:
            self._mailbox.append(lambda: (job(), None)[1])
            self._wake.notify()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._wait_for_work():
                    while self._mailbox:
                        self._mailbox.popleft()()
                    self._scheduler.step()
                    news = self._scheduler.take_news()
                    if news:
                        self._loop.call_soon_threadsafe(self._progress, news)
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._failed, error)
            raise

    def _wait_for_work(self) -> bool:
        """Block until there is something to do; False when asked to stop."""
        with self._wake:
            while not (self._stopping or self._mailbox):
                delay_s = self._scheduler.work_in_s()
                if delay_s == 0.0:
                    break
                self._wake.wait(delay_s)
            return not self._stopping


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # its caller may have been cancelled
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: LocalEngineError) -> None:
    if not future.done():
        future.set_exception(error)
