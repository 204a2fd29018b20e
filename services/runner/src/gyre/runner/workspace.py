"""The directories of one attempt.

<home>/workspaces/<job>/<execution>/a<attempt>/
    workspace/    the harness's working directory; what the evaluator scores
    home/ tmp/    its HOME and TMPDIR
    logs/         stdout and stderr
    status.json   written by the sandbox: which process it is, and how it ended
    interrupted   there when the runner stopped and took the harness along
    proxy         the URL of the proxy that the attempt's door leads to, where it has one
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from gyre.core.task_format import (
    BUILD_FILES,
    ENVIRONMENT_DIR,
    INSTRUCTION_FILE,
    SETTINGS_FILE,
    InvalidTask,
    checked_task_name,
    parse_instruction,
    parse_settings,
)
from gyre.runner.errors import WorkspaceError

WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDir:
    """The paths of one attempt. root: its directory; name: the workspace below `workspaces`."""

    root: Path
    name: str

    @classmethod
    def of(cls, workspaces: Path, *, job: str, execution: str, attempt: int) -> AttemptDir:
        name = f"{job}/{execution}/a{attempt}"
        return cls(root=workspaces / name, name=f"{name}/{WORKSPACE}")

    @property
    def workspace(self) -> Path:
        return self.root / WORKSPACE

    @property
    def harness_home(self) -> Path:
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def interrupted(self) -> Path:
        return self.root / "interrupted"

    @property
    def proxy(self) -> Path:
        return self.root / "proxy"

    def reached_proxy(self) -> str | None:
        """The proxy that the attempt's door leads to; None without a door, or before its use."""
        try:
            return self.proxy.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None


def make(attempt: AttemptDir, task: Path) -> str:
    """Makes the directories anew with the task's environment in the workspace; the prompt.

    Raises WorkspaceError. Only called before anything was launched in them.
    """
    try:
        checked_task_name(task.name)
        if not task.is_dir():
            raise WorkspaceError(f"task {task.name}: no directory {task}")
        prompt = parse_instruction(_text(task / INSTRUCTION_FILE))
        parse_settings(_text(task / SETTINGS_FILE))
        if attempt.root.exists():
            shutil.rmtree(attempt.root)
        for directory in (attempt.harness_home, attempt.tmp, attempt.logs):
            directory.mkdir(parents=True)
        _copy_environment(task / ENVIRONMENT_DIR, attempt.workspace)
    except (OSError, shutil.Error) as error:
        raise WorkspaceError(f"task {task.name}: {error}") from error
    except InvalidTask as error:
        raise WorkspaceError(f"task {task.name}: {error}") from error
    return prompt


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WorkspaceError(f"{path.name}: is not UTF-8: {error}") from error


def _copy_environment(environment: Path, workspace: Path) -> None:
    """A task without an environment starts in an empty workspace."""
    if not environment.is_dir():
        workspace.mkdir()
        return

    def ignore(directory: str, names: list[str]) -> set[str]:
        return set(BUILD_FILES.intersection(names)) if Path(directory) == environment else set()

    shutil.copytree(environment, workspace, symlinks=True, ignore=ignore)
