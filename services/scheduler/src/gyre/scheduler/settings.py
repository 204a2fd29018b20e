"""Settings of the scheduler, from the environment (GYRE_*)."""

from __future__ import annotations

from pydantic import SecretStr

from gyre.adapters.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """scheduler_host: loopback unless a network is in front. api_token: bearer token of the API."""

    scheduler_host: str = "127.0.0.1"
    scheduler_port: int
    api_token: SecretStr
