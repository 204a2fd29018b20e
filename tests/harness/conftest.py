"""What the tests of real agent programs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.testkit.harness_programs import PROGRAMS, Program
from gyre.testkit.harness_script import make_script_model
from gyre.testkit.harness_world import is_installed

# mini-swe-agent alone takes 15 s to start where other things run.
_TIMEOUT_S = 240.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.harness)
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(params=tuple(PROGRAMS))
def program(request: pytest.FixtureRequest) -> Program:
    """Each of them in turn."""
    return _installed(PROGRAMS[request.param])


@pytest.fixture(autouse=True)
def _the_modules_program(request: pytest.FixtureRequest) -> None:
    """A file of tests of one program names it."""
    if hasattr(request.module, "PROGRAM"):
        _installed(request.module.PROGRAM)


@pytest.fixture(scope="session")
def script_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_script_model(tmp_path_factory.mktemp("script") / "model")


def _installed(program: Program) -> Program:
    if not is_installed(program.name):
        pytest.skip(f"{program.name} is not installed: make harness HARNESS={program.name}")
    return program
