"""What the tests on a real stack share: one of their own, asked as a user asks it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.journal import Fact
from gyre.cli.client import ApiClient
from gyre.cli.errors import CommandError
from gyre.contracts.http import JobView
from gyre.embedded import control
from gyre.testkit.log_audit import read_run

# A job's few steps take half a minute on a quiet machine.
JOB_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """home: its state. nats_url: of its event log. client: of its API."""

    home: Path
    nats_url: str
    client: ApiClient
    blobs: DirectoryBlobStore

    def until(
        self,
        job: str,
        done: Callable[[JobView], bool],
        *,
        may_be_away: bool = False,
        deadline_s: float = JOB_DEADLINE_S,
    ) -> JobView:
        """The job's view as soon as it is `done`. may_be_away: the scheduler is killed on purpose,
        and asked again until it is back."""
        deadline = time.monotonic() + deadline_s
        last: object = "nothing"
        while True:
            try:
                last = view = self.client.job(job)
                if done(view):
                    return view
            except CommandError:
                if not may_be_away:
                    raise
            assert time.monotonic() < deadline, f"not there yet: {last}"
            time.sleep(0.2)

    def ended(
        self, job: str, *, may_be_away: bool = False, deadline_s: float = JOB_DEADLINE_S
    ) -> JobView:
        """The job's last view."""
        over = ("succeeded", "failed", "cancelled")
        return self.until(
            job, lambda view: view.status in over, may_be_away=may_be_away, deadline_s=deadline_s
        )

    def read(self, job: str) -> tuple[list[Fact], list[Fact]]:
        """The job's facts and calls."""
        return asyncio.run(read_run(self.nats_url, job, self.blobs))


@contextmanager
def running_stack(
    home: Path, *, cells: int, environ: Mapping[str, str] | None = None
) -> Iterator[Stack]:
    """A stack that is down at the block's end; its files stay."""
    info = control.up(home, cells=cells, environ=environ, owner=os.getpid())
    try:
        with closing(ApiClient(info.urls["scheduler"], info.token)) as client:
            blobs = DirectoryBlobStore(home / "blobs")
            yield Stack(home=home, nats_url=info.urls["nats"], client=client, blobs=blobs)
    finally:
        control.down(home, purge=False)


@pytest.fixture
def start_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Starts a stack of the test's own below `state`; takes `running_stack`'s arguments."""
    with ExitStack() as running:

        def start(*, state: str = "state", **arguments: Any) -> Stack:
            return running.enter_context(running_stack(tmp_path / state, **arguments))

        yield start


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Three cells for the jobs of a module, one after the other."""
    with running_stack(tmp_path_factory.mktemp("stack") / "state", cells=3) as running:
        yield running
