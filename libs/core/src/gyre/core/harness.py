"""Harness profiles by name: what a job file may say about each. The runner knows how to start them.

A profile is known here before it can be run, so that a job naming an unknown one is refused at the
door with the list of those that exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class UnknownHarness(ValueError):
    """No profile has this name."""


class LlmSettings(BaseModel):
    """`harness.settings` of the `llm` profile.

    functions_path: Python file whose functions are the tools. chain_limit: most model turns of one
    execution, after which the program gives up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    functions_path: str
    chain_limit: Annotated[int, Field(gt=0)] = 8


class CommandSettings(BaseModel):
    """`harness.settings` of the `command` profile: any program.

    argv: the program and its arguments. env: variables beside HOME, TMPDIR, PATH and LANG. In both
    {prompt}, {base_url}, {api_key}, {model} and {workspace} are replaced.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    env: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessProfile:
    """name: as the job file says it. settings: the model that `harness.settings` must fit."""

    name: str
    settings: type[BaseModel]

    def check(self, settings: dict[str, Any]) -> BaseModel:
        """The settings, typed. Raises ValueError with one line that names the field."""
        try:
            return self.settings.model_validate(settings)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in fault["loc"])
            raise ValueError(f"{field}: {fault['msg']} (harness {self.name})") from error


_PROFILES = {
    profile.name: profile
    for profile in (
        HarnessProfile(name="llm", settings=LlmSettings),
        HarnessProfile(name="command", settings=CommandSettings),
    )
}


def harness_profile(name: str) -> HarnessProfile:
    """Raises UnknownHarness, which lists the names there are."""
    profile = _PROFILES.get(name)
    if profile is None:
        known = ", ".join(sorted(_PROFILES))
        raise UnknownHarness(f"no harness {name!r}; known: {known}")
    return profile
