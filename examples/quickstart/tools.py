"""Tools of the quickstart's agent, passed to the harness as `llm --functions tools.py`.

The harness registers every callable whose name has no leading underscore, so helpers and
imports carry one. Paths stay inside the working directory: the policy samples them.
"""

from pathlib import Path as _Path


def _inside(path: str) -> bool:
    return _Path(path).resolve().is_relative_to(_Path().resolve())


def read_file(path: str) -> str:
    "Read a file"
    if not _inside(path) or not _Path(path).is_file():
        return "no such file"
    return _Path(path).read_text(encoding="utf-8", errors="replace")[:200]


def write_file(content: str, path: str) -> str:
    "Write a file"
    if not _inside(path) or _Path(path).is_dir() or not _Path(path).parent.is_dir():
        return "cannot write there"
    _Path(path).write_text(str(content), encoding="utf-8")
    return "ok"
