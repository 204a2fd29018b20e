"""`python -m gyre.cell_agent.rendezvous`: the store where a job's trainers find one another.

Consumes: connections of trainers (torch's TCPStore). Produces: one line `{"port": ...}` on standard
output once it listens. Waits for: SIGTERM, SIGINT, or the end of its standard input, which is how
it notices that its supervisor died. No rank hosts the store, so any rank may die.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import signal
import sys
import threading
from collections.abc import Sequence

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gyre.cell_agent.rendezvous")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: the system chooses")
    parser.add_argument(
        "--detached", action="store_true", help="do not end with standard input, only by a signal"
    )
    options = parser.parse_args(arguments)
    store = TCPStore(
        options.host,
        options.port,
        is_master=True,
        wait_for_workers=False,
        timeout=dt.timedelta(seconds=30),
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    sys.stdout.write(json.dumps({"port": store.port}) + "\n")
    sys.stdout.flush()
    if not options.detached:
        threading.Thread(target=_watch_input, args=(ended,), daemon=True).start()
    ended.wait()
    return 0


def _watch_input(ended: threading.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    ended.set()


if __name__ == "__main__":
    sys.exit(main())
