"""nats-server with JetStream for one stack: loopback only, one user, its store on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gyre.embedded import binaries
from gyre.embedded.oneoff import running_process
from gyre.embedded.paths import PRIVATE_DIR, PRIVATE_FILE
from gyre.embedded.process import ProcessSpec
from gyre.embedded.readiness import LOOPBACK, free_ports, nats_ready

NATS_USER = "gyre"
# Bodies over 256 kB never travel through NATS; the rest is room for headers and batches.
MAX_PAYLOAD_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsServer:
    """Where a stack's nats-server lives. `password` None: anybody on this machine may connect."""

    directory: Path
    port: int
    password: str | None = None

    @property
    def url(self) -> str:
        credentials = f"{NATS_USER}:{self.password}@" if self.password else ""
        return f"nats://{credentials}{LOOPBACK}:{self.port}"

    @property
    def config_path(self) -> Path:
        return self.directory / "nats.conf"

    def write_config(self) -> None:
        """Write the configuration, readable by its owner only: it holds the password."""
        self.directory.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        descriptor = os.open(self.config_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(self.config())

    def config(self) -> str:
        """The configuration's text. The options of `jetstream` must stand on lines of their own."""
        lines = [
            f"host: {LOOPBACK}",
            f"port: {self.port}",
            "server_name: gyre-embedded",
            f"max_payload: {MAX_PAYLOAD_BYTES}",
            "jetstream {",
            f"  store_dir: {_quoted(self.directory / 'store')}",
            "}",
        ]
        if self.password:
            lines += [
                "authorization {",
                f"  user: {NATS_USER}",
                f'  password: "{self.password}"',
                "}",
            ]
        return "\n".join(lines) + "\n"

    def spec(self, name: str = "nats") -> ProcessSpec:
        """The server as a process of the stack; call `write_config` before it starts."""
        return ProcessSpec(
            name=name,
            argv=(str(binaries.nats_server()), "-c", str(self.config_path)),
            env={"PATH": os.environ.get("PATH", os.defpath)},
            ready=nats_ready(self.port),
            ready_timeout_s=60.0,
        )


@contextlib.contextmanager
def running(directory: Path, *, password: str | None = None) -> Iterator[NatsServer]:
    """A nats-server that lives as long as the block; its store in `directory` stays.

    Raises StackFailed when it does not come up.
    """
    server = NatsServer(
        directory=directory, port=free_ports({"nats": None})["nats"], password=password
    )
    server.write_config()
    with running_process(server.spec(), directory / "nats.log"):
        yield server


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
