"""The command `gyre` in the test's own process: a new one takes a second to import."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


def run_command(
    app: ModuleType, arguments: tuple[str, ...], *, env: Mapping[str, str], home: Path
) -> Ended:
    """`app.main` as if started with `arguments` in `home`, where `env` is all the environment.

    The process's logging stays as the tests have it.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.object(sys, "argv", ["gyre", *arguments]),
        mock.patch.object(app, "configure_logging"),
        contextlib.chdir(home),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            app.main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Ended(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


def one_line(ended: Ended) -> str:
    """The one line that a fault is said in, with exit status 2 and nothing on stdout."""
    assert ended.returncode == 2, ended
    assert ended.stdout == "", ended
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("gyre: "), ended.stderr
    return lines[0]
