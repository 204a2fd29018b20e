"""What every test shares: how hypothesis runs, and the engines' fixtures."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("gyre.testkit.engine_fixtures",)

# Wall-clock limits per example say nothing on a busy machine; pytest-timeout bounds each test.
settings.register_profile(
    "gyre", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("gyre")


def pytest_collection_finish(session: pytest.Session) -> None:
    """The trainer's CPU shim patches torch for its whole process: never this one. And all tests but
    those of tests/gpu, which are run by themselves, are held against what a CPU computes."""
    if not all(item.get_closest_marker("gpu") for item in session.items):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if "gyre.cell_agent.trainer.megatron.megatron_core" in sys.modules:
        raise pytest.UsageError(
            "a test imports the trainer's megatron code into the test process: use a subprocess"
        )
