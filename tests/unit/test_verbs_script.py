"""The library that Mooncake is linked to, for a checkout without root."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import orjson
import pytest

from gyre.testkit.modules import load_module

SCRIPTS = Path(__file__).parents[2] / "scripts"
# Any library that can be loaded.
LIBRARY = str(orjson.orjson.__file__)
# Stand in for Debian's programs, which would need its index and a network.
FAKE_APT = """#!/bin/sh
echo "$*" >> "$CALLS"
[ -z "$SAYS" ] || { echo "$SAYS" >&2; exit 100; }
touch everything.deb
"""
FAKE_DPKG = """#!/bin/sh
mkdir -p "$3/usr/lib/here"
for name in $HOLDS; do cp "$LIBRARY" "$3/usr/lib/here/$name"; done
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As on a machine without libibverbs."""
    module = load_module(SCRIPTS / "verbs.py", "gyre_verbs")
    monkeypatch.setattr(module, "SYSTEM", "libnowhere.so.0")
    return module


@pytest.fixture
def calls(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the fake apt-get was called with, a line a call."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"apt-get": FAKE_APT, "dpkg-deb": FAKE_DPKG}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    noted = tmp_path / "calls"
    noted.touch()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(noted))
    monkeypatch.setenv("SAYS", "")
    monkeypatch.setenv("LIBRARY", LIBRARY)
    monkeypatch.setenv("HOLDS", " ".join(script.LIBRARIES.values()))
    return noted


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    made = tmp_path / "a cache"
    made.mkdir()
    return made


def test_the_systems_own_library_is_taken_where_it_is(
    script: ModuleType, calls: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "SYSTEM", LIBRARY)
    assert script.verbs_directory(cache) is None
    assert calls.read_text() == ""


def test_the_libraries_are_fetched_once_and_nothing_else_is_left(
    script: ModuleType, calls: Path, cache: Path
) -> None:
    directory = script.verbs_directory(cache)
    assert sorted(path.name for path in directory.iterdir()) == sorted(script.LIBRARIES.values())
    assert script.verbs_directory(cache) == directory
    (call,) = calls.read_text().splitlines()
    assert call.endswith("download " + " ".join(script.LIBRARIES))
    assert list(cache.iterdir()) == [directory]


def test_what_cannot_be_fetched_is_one_line_and_waits_before_it_is_tried_again(
    script: ModuleType, calls: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAYS", "E: Unable to locate package libnl-3-200")
    for _ in range(2):
        with pytest.raises(script.VerbsError, match=r"Unable to locate.*as root, apt-get install"):
            script.verbs_directory(cache)
    assert len(calls.read_text().splitlines()) == 1
    (stamp,) = cache.iterdir()
    os.utime(stamp, (0, 0))
    monkeypatch.setenv("SAYS", "")
    directory = script.verbs_directory(cache)
    assert list(cache.iterdir()) == [directory]


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("holds", ["", "libnl-3.so.200 libnl-route-3.so.200"])
def test_packages_without_the_library_leave_no_half_of_it(
    script: ModuleType, cache: Path, monkeypatch: pytest.MonkeyPatch, holds: str
) -> None:
    monkeypatch.setenv("HOLDS", holds)
    with pytest.raises(script.VerbsError, match="in the packages of"):
        script.verbs_directory(cache)
    assert [path.suffix for path in cache.iterdir()] == [".failed"]


@pytest.mark.usefixtures("calls")
def test_a_library_that_cannot_be_loaded_is_refused(
    script: ModuleType, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"for another machine")
    monkeypatch.setenv("LIBRARY", str(broken))
    with pytest.raises(script.VerbsError, match="cannot be loaded"):
        script.verbs_directory(cache)


def test_set_up_goes_on_without_the_library(
    calls: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "verbs", raising=False)
    monkeypatch.setenv("SAYS", "E: no network")
    setup = load_module(SCRIPTS / "setup.py", "gyre_setup_verbs")
    monkeypatch.setattr(sys.modules["verbs"], "SYSTEM", "libnowhere.so.0")
    assert setup.rdma_libraries(cache) == {}
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("setup: mooncake: no libibverbs, apt-get says 'E: no network'")
    monkeypatch.setenv("SAYS", "")
    (stamp,) = cache.iterdir()
    stamp.unlink()
    (found,) = setup.rdma_libraries(cache).values()
    assert Path(found).is_dir()
