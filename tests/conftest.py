"""What every test shares: how hypothesis runs."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings

# Wall-clock limits per example say nothing on a busy machine; pytest-timeout bounds each test.
settings.register_profile(
    "gyre", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("gyre")


def pytest_collection_finish() -> None:
    """The trainer's CPU shim patches torch for its whole process: never this one."""
    if "gyre.cell_agent.trainer.megatron.megatron_core" in sys.modules:
        raise pytest.UsageError(
            "a test imports the trainer's megatron code into the test process: use a subprocess"
        )
