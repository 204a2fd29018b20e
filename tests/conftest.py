"""What every test shares: how hypothesis runs."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Wall-clock limits per example say nothing on a busy machine; pytest-timeout bounds each test.
settings.register_profile(
    "gyre", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("gyre")
