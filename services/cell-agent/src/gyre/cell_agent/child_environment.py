"""What the cell's engine and trainer inherit of their agent's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gyre.adapters.keys import make_blobs_key, make_weights_key
from gyre.cell_agent.weights.base import WEIGHTS_KEY

# The agent's alone: both children are reached over the network, and neither signs a key, reads the
# log or asks the database. Addresses are left out with them, since they may hold a password.
SECRETS = frozenset(
    {
        "GYRE_API_TOKEN",
        "GYRE_DATABASE_URL",
        "GYRE_KEY_SECRET",
        "GYRE_NATS_URL",
        "PGPASSFILE",
        "PGPASSWORD",
    }
)


def trainer_environment(secret: str, job: str) -> dict[str, str]:
    """What a rank of the job's trainers is told beside what it inherits. secret: the cluster's."""
    return {"GYRE_BLOBS_KEY": make_blobs_key(secret), WEIGHTS_KEY: make_weights_key(secret, job)}


def child_environment(threads: int, more: Mapping[str, str]) -> dict[str, str]:
    """The agent's own without its secrets. threads: of each of torch's parallel regions. more:
    what the child is told beside; it is passed on whatever its name."""
    kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
    return {**kept, "OMP_NUM_THREADS": str(threads), **more}
