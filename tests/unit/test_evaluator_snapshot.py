"""Workspaces frozen as artifacts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gyre.evaluator.errors import ArtifactTooLarge
from gyre.evaluator.scorer import remove_tree
from gyre.evaluator.snapshot import Limits, extract, take_snapshot

LIMITS = Limits(max_bytes=1_000_000, max_entries=100)


def fill(root: Path, order: list[str]) -> Path:
    """The same tree, made in another order at another time."""
    root.mkdir()
    for name in order:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (len(str(root)), len(str(root))))
    (root / "run.sh").write_text("x")
    (root / "run.sh").chmod(0o750)
    (root / "empty").mkdir()
    (root / "link").symlink_to("sub/b.txt")
    return root


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    one = take_snapshot(fill(tmp_path / "one", ["a.txt", "sub/b.txt", "ä b\n.txt"]), LIMITS)
    other = take_snapshot(fill(tmp_path / "other", ["ä b\n.txt", "sub/b.txt", "a.txt"]), LIMITS)
    assert one.data == other.data
    assert one.num_skipped == 0


@pytest.mark.parametrize("change", ["content", "mode", "name", "empty directory"])
def test_any_change_gives_other_bytes(tmp_path: Path, change: str) -> None:
    root = fill(tmp_path / "one", ["a.txt", "sub/b.txt"])
    before = take_snapshot(root, LIMITS).data
    match change:
        case "content":
            (root / "a.txt").write_text("A.txt")
        case "mode":
            (root / "a.txt").chmod(0o755)
        case "name":
            (root / "a.txt").rename(root / "c.txt")
        case _:
            (root / "empty").rmdir()
    assert take_snapshot(root, LIMITS).data != before


def test_an_artifact_comes_back_as_it_was(tmp_path: Path) -> None:
    root = fill(tmp_path / "one", ["a.txt", "sub/b.txt", "ä b\n.txt"])
    (root / os.fsdecode(b"\xff\xfe")).write_bytes(b"\x00")
    snapshot = take_snapshot(root, LIMITS)
    target = tmp_path / "target"
    target.mkdir()
    extract(snapshot.data, target)
    assert take_snapshot(target, LIMITS).data == snapshot.data
    assert str((target / "link").readlink()) == "sub/b.txt"
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o750


def test_nothing_that_reaches_beyond_the_workspace_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fill(tmp_path / "one", ["a.txt"])
    plain = take_snapshot(root, LIMITS)
    (tmp_path / "secret").write_text("s")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("../secret")
    (root / "out").symlink_to("..")
    (root / "through").symlink_to("out/secret")
    (root / "ring").symlink_to("ring")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(root)  # a socket's path may not be long
        server.bind("socket")
        hostile = take_snapshot(root, LIMITS)
    assert hostile.data == plain.data
    assert hostile.num_skipped == 7


def test_a_workspace_over_a_limit_is_refused(tmp_path: Path) -> None:
    root = fill(tmp_path / "one", ["a.txt"])
    with (root / "sparse").open("wb") as file:
        file.truncate(10_000_000_000)
    with pytest.raises(ArtifactTooLarge, match="more than 1000000 bytes"):
        take_snapshot(root, LIMITS)
    (root / "sparse").unlink()
    with pytest.raises(ArtifactTooLarge, match="more than 2 entries"):
        take_snapshot(root, Limits(max_bytes=1000, max_entries=2))


def test_a_removed_workspace_is_an_empty_artifact(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    empty = take_snapshot(tmp_path / "empty", LIMITS).data
    assert take_snapshot(tmp_path / "gone", LIMITS).data == empty
    assert take_snapshot(tmp_path / "link", LIMITS).data == empty


def test_clearing_away_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o755)
    (tmp_path / "kept" / "file").write_text("x")
    tree = tmp_path / "tree"
    (tree / "locked" / "below").mkdir(parents=True)
    (tree / "locked" / "link").symlink_to(tmp_path / "kept")
    (tree / "locked").chmod(0)
    remove_tree(tree)
    assert not tree.exists()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "kept" / "file").read_text() == "x"
    assert not (tmp_path / "link").is_symlink()
