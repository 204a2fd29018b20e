"""`python -m gyre.embedded.prepare`: make the event log's streams and apply the migrations.

Runs once at each start of a stack, after the servers and before the services; both steps leave
what is already right as it is. Exit status 2: settings are missing.
"""

from __future__ import annotations

import asyncio
import os
import sys

from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.postgres import migrate


def main() -> None:
    missing = [name for name in ("GYRE_NATS_URL", "GYRE_DATABASE_URL") if not os.environ.get(name)]
    if missing:
        sys.stderr.write(f"prepare: {' and '.join(missing)} must be set\n")
        sys.exit(2)
    asyncio.run(ensure_streams(os.environ["GYRE_NATS_URL"]))
    migrate(os.environ["GYRE_DATABASE_URL"])


if __name__ == "__main__":
    main()
