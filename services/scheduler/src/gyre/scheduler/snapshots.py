"""The scheduler's snapshots: when one is taken, and which one a restart goes on from."""

from __future__ import annotations

import asyncio
import hashlib
import time

import gyre.contracts
import gyre.core
import gyre.scheduler
from gyre.adapters.collection import no_collection
from gyre.adapters.eventlog.base import EventLog, Stream
from gyre.adapters.logging import get_logger
from gyre.adapters.snapshots import (
    FORMAT,
    SnapshotHeader,
    SnapshotRefused,
    SnapshotStore,
    check_against_log,
    code_of,
    read_snapshot,
)
from gyre.scheduler.folded import Folded, dump_folded, load_folded

# What a restart reads behind its snapshot at most, a third of a second's worth. A job brings tens
# of facts a second: one is taken every ten minutes or so, and holds the loop for a tenth of one.
SNAPSHOT_EVERY = 20_000


class Snapshots:
    """Takes them of the loop's state and finds the newest that fits the log."""

    def __init__(self, store: SnapshotStore, log: EventLog, *, every: int = SNAPSHOT_EVERY) -> None:
        self._store = store
        self._log = log
        self._every = every
        self._code = code_of((gyre.contracts, gyre.core, gyre.scheduler))
        self._last = 0
        self._in_hand = False

    async def newest(self) -> Folded:
        """The state to go on from: the newest snapshot's that fits, else an empty one."""
        for path in self._store.newest_first():
            began = time.perf_counter()
            try:
                header, body = read_snapshot(path, code=self._code)
                await check_against_log(header, self._log)
                folded = _load(header, body)
            except SnapshotRefused as error:
                get_logger().warning("snapshot_refused", snapshot=path.name, reason=str(error))
                continue
            self._last = folded.sequence
            took = round(time.perf_counter() - began, 3)
            get_logger().info("snapshot_loaded", sequence=folded.sequence, seconds=took)
            return folded
        return Folded()

    def due(self, folded: Folded) -> bool:
        """Not while the last one is still being written: the newest file is the furthest one."""
        return not self._in_hand and folded.sequence - self._last >= self._every

    def take(self, folded: Folded) -> tuple[SnapshotHeader, bytes]:
        """`folded` as it is now, for `write`; at once, so that nothing is folded meanwhile."""
        self._last = folded.sequence
        self._in_hand = True
        body = dump_folded(folded)
        header = SnapshotHeader(
            format=FORMAT,
            code=self._code,
            stream=Stream.FACTS,
            origin=folded.origin,
            sequence=folded.sequence,
            event_id=folded.last_event,
            digest=hashlib.sha256(body).hexdigest(),
        )
        return header, body

    async def write(self, header: SnapshotHeader, body: bytes) -> None:
        """Off the loop. A disk that is full costs the snapshot, not the scheduler."""
        try:
            await asyncio.to_thread(self._store.write, header, body)
        except OSError as error:
            get_logger().error("snapshot_failed", sequence=header.sequence, error=str(error))
            return
        finally:
            self._in_hand = False
        get_logger().info("snapshot_written", sequence=header.sequence, num_bytes=len(body))


def _load(header: SnapshotHeader, body: bytes) -> Folded:
    try:
        with no_collection():
            folded = load_folded(body)
    except ValueError as error:
        raise SnapshotRefused("the body is no state of this release") from error
    found = (folded.sequence, folded.origin, folded.last_event)
    if found != (header.sequence, header.origin, header.event_id):
        raise SnapshotRefused("the body is of another place in the log than the header says")
    return folded
