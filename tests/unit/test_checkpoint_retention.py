"""Which checkpoints of a job stay on disk."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre.cell_agent.trainer.checkpoints.retention import (
    Retention,
    checkpoint_name,
    draft_of,
    lacks_room,
    prune,
)


def checkpoints(parent: Path, *names: tuple[int, int]) -> list[Path]:
    made = [parent / checkpoint_name(*name) for name in names]
    for directory in made:
        (directory / "trainer_state").mkdir(parents=True)
        (directory / "manifest.json").write_text("{}")
    return made


def there(parent: Path) -> set[str]:
    return {entry.name for entry in parent.iterdir()}


def test_the_newest_by_lineage_and_then_version_stay(tmp_path: Path) -> None:
    checkpoints(tmp_path, (1, 8), (1, 9), (1, 10), (2, 3), (2, 4))
    assert prune(tmp_path, Retention(keep=3)) == 2
    assert there(tmp_path) == {"l1-v00010", "l2-v00003", "l2-v00004"}


def test_what_is_protected_stays_however_old(tmp_path: Path) -> None:
    oldest, *_ = checkpoints(tmp_path, (1, 1), (1, 2), (1, 3))
    elsewhere = tmp_path / "other" / ".." / oldest.name
    (tmp_path / "other").mkdir()
    assert prune(tmp_path, Retention(keep=1, protected=(elsewhere,))) == 1
    assert there(tmp_path) == {"l1-v00001", "l1-v00003", "other"}


def test_room_for_one_that_comes_is_made_of_the_newest(tmp_path: Path) -> None:
    checkpoints(tmp_path, (1, 1), (1, 2))
    assert prune(tmp_path, Retention(keep=2), coming=1) == 1
    assert there(tmp_path) == {"l1-v00002"}
    assert prune(tmp_path, Retention(keep=1), coming=1) == 1
    assert prune(tmp_path, Retention(keep=1), coming=1) == 0


def test_what_a_crash_left_goes_and_nothing_else_does(tmp_path: Path) -> None:
    (draft,) = (draft_of(directory) for directory in checkpoints(tmp_path, (1, 1)))
    draft.mkdir()
    (tmp_path / ".l1-v00000.gone" / "trainer_state").mkdir(parents=True)
    for strange in ("notes", ".hidden", "l1-vx"):
        (tmp_path / strange).mkdir()
    assert prune(tmp_path, Retention(keep=1)) == 2
    assert there(tmp_path) == {"l1-v00001", "notes", ".hidden", "l1-vx"}


def test_a_checkpoint_that_cannot_be_removed_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints(tmp_path, (1, 1), (1, 2))

    def busy(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "rename", busy)
    assert prune(tmp_path, Retention(keep=1)) == 0
    assert len(there(tmp_path)) == 2


@pytest.fixture
def small_files() -> Iterator[int]:
    """This process writes no file of more bytes than it yields."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))
    yield 65536
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


def test_room_is_what_the_file_system_gives(tmp_path: Path, small_files: int) -> None:
    assert not lacks_room(tmp_path, small_files)
    assert lacks_room(tmp_path, small_files + 1)
    assert there(tmp_path) == set()
