"""Settings of the trajectory service: those that every service has, and nothing else. What it does
with a job is in the job's own file (`admission`, `objective.advantage`)."""

from __future__ import annotations

from gyre.adapters.settings import ServiceSettings


class TrajectorySettings(ServiceSettings):
    """GYRE_NATS_URL, GYRE_DATABASE_URL, GYRE_HOME (blobs, readiness file), GYRE_KEY_SECRET."""
