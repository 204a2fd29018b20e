"""gyre export-model: a checkpoint's weights as a directory of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from gyre.cli.errors import CommandError
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.contracts.subjects import checked_id
from gyre.embedded.paths import StackPaths

WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
# What goes on with training, and is of no use to who serves.
_LEFT_OUT = frozenset({MANIFEST, "trainer_state"})
_NAMED = re.compile(r"l(\d+)-v(\d+)")
_PIECE_BYTES = 8 * 1024 * 1024


def register(app: typer.Typer) -> None:
    app.command("export-model")(export_model)


def export_model(
    source: Annotated[
        str, typer.Argument(metavar="JOB|CHECKPOINT", help="A job's id, or a checkpoint's path.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DIR", help="New, or an empty directory.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Write a trained model as a Hugging Face directory, which transformers loads and SGLang
    serves: of a job its newest checkpoint."""
    checkpoint = _checkpoint(source, home)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CommandError(f"{target} is there already: name a new or an empty directory")
    manifest = _manifest(checkpoint)
    # Whole or not there: it is renamed into place.
    draft = target.absolute().with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        _copy(checkpoint, draft, manifest)
        draft.rename(target)
    except OSError as error:
        raise CommandError(f"{error.filename or target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    typer.echo(f"{target}: version {manifest['version']}, from {checkpoint}")


def _checkpoint(source: str, home: Path) -> Path:
    """Raises CommandError: no such job has a checkpoint here."""
    if (Path(source) / MANIFEST).is_file():
        return Path(source)
    if os.sep in source or not source:
        raise CommandError(f"{source} is no checkpoint: it has no {MANIFEST}")
    try:
        directory = StackPaths.of(home).home / "checkpoints" / checked_id(source)
    except ValueError as error:
        raise CommandError(f"{source} is neither a job's id nor a checkpoint: {error}") from error
    entries = directory.iterdir() if directory.is_dir() else ()
    found = [(_number(entry), entry) for entry in entries if (entry / MANIFEST).is_file()]
    if not found:
        raise CommandError(f"job {source} has no checkpoint in {directory.parent}")
    return max(found)[1]


def _number(checkpoint: Path) -> tuple[int, int]:
    """(lineage, version); before all others where the name does not say."""
    named = _NAMED.fullmatch(checkpoint.name)
    return (int(named[1]), int(named[2])) if named else (-1, -1)


def _manifest(checkpoint: Path) -> dict[str, Any]:
    """Raises CommandError: it cannot be read."""
    path = checkpoint / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        return {name: manifest[name] for name in ("version", "file_sha256")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{path} is no manifest of a checkpoint: {error!r}") from error


def _copy(checkpoint: Path, draft: Path, manifest: dict[str, Any]) -> None:
    for path in sorted(checkpoint.iterdir()):
        if path.name in (*_LEFT_OUT, WEIGHTS) or not path.is_file():
            continue
        shutil.copyfile(path, draft / path.name)
    if _copied(checkpoint / WEIGHTS, draft / WEIGHTS) != manifest["file_sha256"]:
        raise CommandError(
            f"{checkpoint / WEIGHTS} is damaged: it does not match {MANIFEST}; "
            "take another checkpoint"
        )


def _copied(path: Path, copy: Path) -> str:
    """Returns the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    with path.open("rb") as source, copy.open("wb") as target:
        while piece := source.read(_PIECE_BYTES):
            digest.update(piece)
            target.write(piece)
    return digest.hexdigest()
