"""libibverbs beside the environments, for Mooncake's transfer engine, without root.

Its wheel is linked to that library even where no RDMA device is, and does not bring it. Where the
system has it (as root: `apt-get install libibverbs1`) nothing is done. Elsewhere the distribution's
own packages are fetched and unpacked into the cache, where nothing but the transport looks:

    <cache>/rdma-<fingerprint>/    LIBRARIES, each after those that it needs

A process loads them in this order, globally, before it imports `mooncake.engine`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

# Package and library, each after those that it needs.
LIBRARIES = {
    "libnl-3-200": "libnl-3.so.200",
    "libnl-route-3-200": "libnl-route-3.so.200",
    "libibverbs1": "libibverbs.so.1",
}
SYSTEM = "libibverbs.so.1"
MEND = "as root, apt-get install libibverbs1"
FETCH = ["apt-get", "-q", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10"]
FETCH_TIMEOUT_S = 60.0
# Every make target sets up first: without a network, not each of them waits for one.
TRY_AGAIN_S = 3600.0


class VerbsError(Exception):
    """The library is not to be had. The message is one line that names the mend."""


def verbs_directory(cache: Path) -> Path | None:
    """Where the libraries are, fetched if need be; None where the system has its own.

    Raises VerbsError: neither. For an hour after it no fetch is tried again.
    """
    if _loads(SYSTEM):
        return None
    directory = cache / f"rdma-{_fingerprint()}"
    if directory.is_dir():
        return directory
    failed = cache / f"{directory.name}.failed"
    with contextlib.suppress(FileNotFoundError):
        if time.time() - failed.stat().st_mtime < TRY_AGAIN_S:
            raise VerbsError(failed.read_text())
    try:
        _fetch(directory)
    except VerbsError as error:
        failed.write_text(str(error))
        raise
    failed.unlink(missing_ok=True)
    return directory


def _fetch(directory: Path) -> None:
    """Raises VerbsError. `directory` appears at once and whole, or not at all."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise VerbsError("no libibverbs, and no apt-get to fetch it: install rdma-core")
    with tempfile.TemporaryDirectory(dir=directory.parent) as work:
        fetched, unpacked, whole = (Path(work, part) for part in ("deb", "tree", "whole"))
        fetched.mkdir()
        whole.mkdir()
        _run([*FETCH, "download", *LIBRARIES], fetched)
        for package in sorted(fetched.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(unpacked)], fetched)
        for name in LIBRARIES.values():
            found = sorted(unpacked.rglob(name))
            if not found:
                raise VerbsError(f"no {name} in the packages of {_distribution()}: {MEND}")
            shutil.copyfile(found[0], whole / name)
            if not _loads(str(whole / name)):
                raise VerbsError(f"{name} of {_distribution()} cannot be loaded: {MEND}")
        # Another set-up may have been first: what it made serves as well.
        with contextlib.suppress(OSError):
            whole.rename(directory)
    if not directory.is_dir():
        raise VerbsError(f"cannot write {directory}: set GYRE_CACHE")


def _run(command: list[str], cwd: Path) -> None:
    """Raises VerbsError with what the program said last."""
    try:
        result = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise VerbsError(f"no libibverbs, {command[0]} gets no answer: {MEND}") from error
    if result.returncode != 0:
        said = result.stderr.strip().splitlines()
        reason = said[-1] if said else "it failed"
        raise VerbsError(f"no libibverbs, {command[0]} says {reason!r}: {MEND}")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _fingerprint() -> str:
    parts = (*LIBRARIES, _distribution(), platform.machine())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _distribution() -> str:
    """Such as debian 12: its libraries need its C library."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return os.uname().sysname
    return f"{release['ID']} {release.get('VERSION_ID', '')}".strip()
