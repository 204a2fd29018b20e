"""A checkpoint on its way to the disk, here and now or on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gyre.cell_agent.trainer.checkpoints.manifest import Manifest


class Saving:
    """One save. The thread touches copies only, so that the trainer goes on meanwhile."""

    def __init__(self, directory: Path, save: Callable[[], Manifest]) -> None:
        self.directory = directory
        self._save = save
        self._thread: threading.Thread | None = None
        self._manifest: Manifest | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Returns when it is over, however it ended: `result` says how."""
        try:
            self._manifest = self._save()
        except BaseException as error:  # noqa: BLE001  told by `result`, on the thread that asks
            self._error = error

    def start(self) -> None:
        """`run`, on a thread. A process that is asked to exit finishes it first."""
        self._thread = threading.Thread(target=self.run, name="checkpoint")
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it is over, at most so long."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def over(self) -> bool:
        return self._manifest is not None or self._error is not None

    @property
    def result(self) -> Manifest:
        """Of a save that is over. Raises CheckpointError, or whatever else it died of."""
        if self._error is not None:
            raise self._error
        assert self._manifest is not None
        return self._manifest
