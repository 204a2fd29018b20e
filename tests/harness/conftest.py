"""What the tests of real agent programs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.testkit.harness_world import is_installed
from gyre.testkit.played_engine import make_script_model

ROOT = Path(__file__).parents[2]
# Enough English and code that a prompt has about four characters a token.
_TEXTS = ("docs/*.md", "docs/adr/*.md", "libs/core/src/gyre/core/*.py", "README.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.harness)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    name: str = request.module.HARNESS
    if not is_installed(name):
        pytest.skip(f"{name} is not installed: make harness HARNESS={name}")


@pytest.fixture(scope="session")
def script_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [path.read_text() for pattern in _TEXTS for path in sorted(ROOT.glob(pattern))]
    return make_script_model(tmp_path_factory.mktemp("script") / "model", texts)
