"""Settings that every service has, from the environment (GYRE_*), validated once, frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class SettingsError(Exception):
    """The environment does not hold the settings that this process needs."""


class ServiceSettings(BaseSettings):
    """What each service shares; a service adds its own fields in a subclass.

    service_name: of this process, in logs and of its readiness file, where several of one service
    share a home.
    """

    model_config = SettingsConfigDict(
        env_prefix="GYRE_",
        frozen=True,
        extra="ignore",
        validate_default=True,
        hide_input_in_errors=True,
    )

    nats_url: str = Field(min_length=1)
    database_url: str = Field(min_length=1)
    home: Annotated[Path, AfterValidator(Path.absolute)] = Path(".gyre")
    key_secret: SecretStr
    log_level: LogLevel = "INFO"
    service_name: Annotated[str, Field(pattern=r"^[\w-]+$")] | None = None

    @property
    def run_dir(self) -> Path:
        """Readiness files, pid files, failpoint markers."""
        return self.home / "run"

    @property
    def blobs_dir(self) -> Path:
        """Root of the content-addressed blob store."""
        return self.home / "blobs"


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def load_settings(kind: type[SettingsT]) -> SettingsT:
    """Reads the environment. Raises SettingsError, one line that names each variable at fault."""
    try:
        return kind()
    except ValidationError as error:
        faults = "; ".join(
            f"GYRE_{'_'.join(map(str, fault['loc'])).upper()}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False)
        )
        raise SettingsError(f"settings: {faults}") from None
