"""A process that behaves as its argument says. Standard library only: it starts in 30 ms."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

READY = Path(os.environ["GYRE_READY_FILE"])
HOME = Path(os.environ["GYRE_HOME"])


def echo() -> None:
    """Answer each connection with this process's id."""
    listener = socket.socket(fileno=int(os.environ["GYRE_PROXY_LISTEN_FD"]))
    READY.write_text("")
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(f"{os.getpid()}\n".encode())


def detach() -> None:
    """Leave a grandchild in a session of its own, whose parent is gone."""
    script = (
        "import os, subprocess, sys\n"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open(sys.argv[1], 'w').write(str(p.pid))\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(HOME / "grandchild")], check=True)
    wait()


def wait() -> None:
    READY.write_text("")
    while True:
        time.sleep(60)


match sys.argv[1]:
    case "echo":
        echo()
    case "detach":
        detach()
    case "wait":
        wait()
    case "late":
        time.sleep(1)
        wait()
    case "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wait()
    case "oneshot":
        (HOME / "once").write_text("done")
    case "bad-settings":
        print("dummy: settings: GYRE_COLOUR: not a colour", flush=True)
        sys.exit(2)
    case "crash":
        print("dummy: cannot work like this", flush=True)
        sys.exit(1)
    case "slow-start":
        time.sleep(60)
    case other:
        raise SystemExit(f"unknown behaviour {other}")
