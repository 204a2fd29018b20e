"""Settings of the trajectory service: those that every service has, and where it serves blobs. What
it does with a job is in the job's own file (`admission`, `objective.advantage`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gyre.adapters.settings import ServiceSettings


class TrajectorySettings(ServiceSettings):
    """GYRE_NATS_URL, GYRE_DATABASE_URL, GYRE_HOME (blobs, readiness file), GYRE_KEY_SECRET.

    blobs_port: of the blob server that trainers of other machines get micro-steps from; without it
    there is none, and they need this machine's directory. blobs_host: where it listens, loopback
    unless the job's own network is in front.
    """

    blobs_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    blobs_port: Annotated[int, Field(ge=0, le=65535)] | None = None
