"""Where a stack keeps its state: one directory, `GYRE_HOME`, `.gyre` by default."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPaths:
    """Every path of one stack, derived from its absolute `home`; creates nothing by itself."""

    home: Path

    @classmethod
    def of(cls, home: Path | str) -> StackPaths:
        return cls(home=Path(home).expanduser().resolve())

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def nats(self) -> Path:
        return self.home / "nats"

    @property
    def secrets(self) -> Path:
        return self.home / "secret.json"

    @property
    def stack(self) -> Path:
        """The supervisor's published state: processes, identities, addresses."""
        return self.run / "stack.json"

    @property
    def restarts(self) -> Path:
        """One JSON line for each process that died and was restarted."""
        return self.run / "restarts.jsonl"

    @property
    def ports(self) -> Path:
        """The ports of the last start, taken again by the next one."""
        return self.run / "ports.json"

    @property
    def postgres(self) -> Path:
        """Where the database of this stack lies (it is outside of `home`)."""
        return self.run / "postgres.json"

    @property
    def up_lock(self) -> Path:
        return self.run / "up.lock"

    @property
    def supervisor_lock(self) -> Path:
        return self.run / "supervisor.lock"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def ready(self, name: str) -> Path:
        """The file that process `name` writes when it can do its work."""
        return self.run / f"{name}.ready"

    def held(self, name: str) -> Path:
        """While this file is there process `name` is not started again."""
        return self.run / f"{name}.held"

    def create(self) -> None:
        """Make the directories, private to the user that runs the stack."""
        for directory in (self.home, self.run, self.logs, self.nats):
            directory.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace `path` by `value` in one step: a reader sees the old text or the new, never a part.

    The file is readable by its owner only, since most of what is written here holds an address
    with a password. `durable`: on disk before it returns; a state that only describes living
    processes need not be.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1, sort_keys=True)
        stream.write("\n")
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, or None where there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    value: dict[str, Any] = json.loads(text)
    return value
