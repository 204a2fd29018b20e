"""Settings of the scheduler, from the environment (GYRE_*)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from gyre.adapters.settings import ServiceSettings
from gyre.scheduler.snapshots import SNAPSHOT_EVERY


class SchedulerSettings(ServiceSettings):
    """scheduler_host: loopback unless a network is in front. api_token: bearer token of the API.
    snapshot_every: facts between two snapshots of the state."""

    scheduler_host: str = "127.0.0.1"
    scheduler_port: int
    api_token: SecretStr
    snapshot_every: int = Field(default=SNAPSHOT_EVERY, ge=1)

    @property
    def snapshots_dir(self) -> Path:
        return self.home / "snapshots" / "scheduler"
