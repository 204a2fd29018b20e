"""Settings of the evaluator, from GYRE_* variables."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from gyre.adapters.settings import ServiceSettings


class EvaluatorSettings(ServiceSettings):
    """concurrency: scorers that run at once; two, so that a slow one does not hold up the rest.

    max_artifact_bytes, max_artifact_entries: what a workspace may hold; an artifact passes through
    memory on its way to the blob store. scorer_path: PATH of the scorer. max_file_bytes: longest
    file a scorer may write.
    """

    evaluator_concurrency: int = Field(default=2, gt=0)
    evaluator_max_artifact_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    evaluator_max_artifact_entries: int = Field(default=100_000, gt=0)
    evaluator_max_file_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    scorer_path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    @property
    def workspaces_dir(self) -> Path:
        """Where the runner keeps workspaces."""
        return self.home / "workspaces"

    @property
    def evaluations_dir(self) -> Path:
        """Scratch copies while a scorer runs, its logs afterwards."""
        return self.home / "evaluations"
