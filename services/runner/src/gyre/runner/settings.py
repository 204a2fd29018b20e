"""Settings of the runner, from GYRE_* variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gyre.adapters.settings import ServiceSettings
from gyre.runner.proxies import Proxies


def _names_proxies(text: str) -> str:
    Proxies.parse(text)
    return text


class RunnerSettings(ServiceSettings):
    """proxy_url: where harnesses reach the model; several with commas between them, `dns+` before
    one whose name has the addresses of several (see `Proxies`). harness_envs: a JSON file that
    names the Python or the native program of each harness, {"harness_<profile>_python": path,
    "harness_<profile>_program": path}.

    runner_grace_s: between SIGTERM and SIGKILL at a time-out; a harness may write its last files.
    runner_stop_grace_s: the same when the runner itself stops, within the supervisor's patience.
    runner_retry_pause_s: before a new attempt, so that a short outage does not use them all up.
    """

    proxy_url: Annotated[str, AfterValidator(_names_proxies)]
    harness_envs: Path | None = None
    runner_grace_s: float = Field(default=5.0, ge=0)
    runner_stop_grace_s: float = Field(default=1.0, ge=0)
    runner_retry_pause_s: float = Field(default=1.0, ge=0)
    runner_max_file_bytes: int = Field(default=1024**3, gt=0)
    runner_max_open_files: int = Field(default=4096, gt=0)

    @property
    def proxies(self) -> Proxies:
        """Those that harnesses may be led to."""
        return Proxies.parse(self.proxy_url)

    @property
    def workspaces_dir(self) -> Path:
        """Workspaces of every attempt; kept, the evaluator reads them."""
        return self.home / "workspaces"
