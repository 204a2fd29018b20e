"""Settings and clocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gyre.adapters.clock import ManualClock, SystemClock
from gyre.adapters.settings import ServiceSettings, SettingsError, load_settings


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HOME", "LOG_LEVEL"):
        monkeypatch.delenv(f"GYRE_{name}", raising=False)
    monkeypatch.setenv("GYRE_NATS_URL", "nats://127.0.0.1:4222")
    monkeypatch.setenv("GYRE_DATABASE_URL", "postgresql+psycopg://postgres@/postgres?host=/tmp")
    monkeypatch.setenv("GYRE_KEY_SECRET", "hunter2")
    return monkeypatch


def test_settings_come_from_gyre_variables(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("GYRE_HOME", "/var/lib/gyre")
    environment.setenv("GYRE_SOMETHING_ELSE", "ignored")
    settings = load_settings(ServiceSettings)
    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert settings.key_secret.get_secret_value() == "hunter2"
    assert settings.run_dir == Path("/var/lib/gyre/run")
    assert settings.blobs_dir == Path("/var/lib/gyre/blobs")


def test_home_defaults_to_the_working_directory(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.chdir(tmp_path)
    assert load_settings(ServiceSettings).home == tmp_path / ".gyre"


def test_settings_are_frozen_and_show_no_secret(environment: pytest.MonkeyPatch) -> None:
    settings = load_settings(ServiceSettings)
    with pytest.raises(ValidationError):
        settings.nats_url = "nats://elsewhere"  # type: ignore[misc]
    assert "hunter2" not in repr(settings)


def test_bad_settings_are_one_line_that_names_each_variable(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.delenv("GYRE_NATS_URL")
    environment.setenv("GYRE_LOG_LEVEL", "LOUD")
    with pytest.raises(SettingsError) as error:
        load_settings(ServiceSettings)
    message = str(error.value)
    assert "GYRE_NATS_URL: Field required" in message
    assert "GYRE_LOG_LEVEL: Input should be" in message
    assert "\n" not in message


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(seconds=10.0)
    clock.advance(2.5)
    assert clock.now() == 12.5
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_the_system_clock_counts_unix_seconds() -> None:
    assert SystemClock().now() > 1.7e9
