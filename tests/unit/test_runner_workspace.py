"""The directories of an attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.runner.errors import WorkspaceError
from gyre.runner.workspace import AttemptDir, make


def task_in(root: Path, *, settings: str = "", instruction: str = "Do it.\n") -> Path:
    task = root / "a task"
    (task / "environment" / "sub").mkdir(parents=True)
    (task / "environment" / "input.txt").write_text("1")
    (task / "environment" / "sub" / "Dockerfile").write_text("kept: not the container's")
    (task / "environment" / "Dockerfile").write_text("FROM x")
    (task / "environment" / ".dockerignore").write_text("Dockerfile")
    (task / "task.toml").write_text(settings)
    (task / "instruction.md").write_text(instruction)
    return task


def attempt_in(root: Path) -> AttemptDir:
    return AttemptDir.of(root / "workspaces", job="j", execution="e", attempt=2)


def test_the_workspace_holds_the_environment_and_no_build_file(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path)
    assert make(attempt, task_in(tmp_path)) == "Do it."
    files = [path for path in attempt.workspace.rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(attempt.workspace)) for path in files)
    assert names == ["input.txt", "sub/Dockerfile"]
    assert attempt.name == "j/e/a2/workspace"
    assert attempt.workspace == tmp_path / "workspaces" / attempt.name
    assert sorted(path.name for path in attempt.root.iterdir()) == [
        "home",
        "logs",
        "tmp",
        "workspace",
    ]


def test_making_it_again_makes_it_fresh(tmp_path: Path) -> None:
    attempt, task = attempt_in(tmp_path), task_in(tmp_path)
    make(attempt, task)
    (attempt.workspace / "left.txt").write_text("x")
    make(attempt, task)
    assert not (attempt.workspace / "left.txt").exists()


def test_a_task_without_environment_starts_empty(tmp_path: Path) -> None:
    attempt, task = attempt_in(tmp_path), tmp_path / "bare"
    task.mkdir()
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("x")
    make(attempt, task)
    assert list(attempt.workspace.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "instruction", "error"),
    [
        ("[", "x", r"task a task: task\.toml"),
        ("", " ", r"task a task: instruction\.md: is empty"),
    ],
)
def test_a_broken_task_is_named(
    tmp_path: Path, settings: str, instruction: str, error: str
) -> None:
    task = task_in(tmp_path, settings=settings, instruction=instruction)
    with pytest.raises(WorkspaceError, match=error):
        make(attempt_in(tmp_path), task)


def test_a_missing_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="task nowhere: no directory"):
        make(attempt_in(tmp_path), tmp_path / "nowhere")


def test_a_disk_that_refuses_is_a_workspace_error(tmp_path: Path) -> None:
    (tmp_path / "workspaces").write_text("a file where a directory should be")
    with pytest.raises(WorkspaceError, match="task a task"):
        make(attempt_in(tmp_path), task_in(tmp_path))
