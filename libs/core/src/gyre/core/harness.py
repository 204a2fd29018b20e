"""Harness profiles by name: what a job file may say about each. The runner knows how to start them.

A profile is known here before it can be run, so that a job naming an unknown one is refused at the
door with the list of those that exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gyre.contracts.events.calls import RequestRole
from gyre.core.admission import CLASS_ORDER
from gyre.core.origins import (
    ReadOrigin,
    claude_code_origin,
    codex_origin,
    generic_origin,
    main_origin,
)


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


class ClaudeCodeSettings(BaseModel):
    """`harness.settings` of the `claude-code` profile.

    bare: the program's own minimal mode (a 4 kB request with the tools Bash, Edit and Read), right
    for small models; the full one is about 80 kB with 24 tools. tools: which of its tools, all that
    the mode has if empty. system_prompt: in place of its own, append_system_prompt: after it.
    thinking: whether the model may think before it answers. env: variables
    beside the profile's own, which they may replace.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bare: bool = False
    tools: tuple[str, ...] = ()
    thinking: bool = True
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    env: dict[str, str] = Field(default_factory=dict)


class CodexSettings(BaseModel):
    """`harness.settings` of the `codex` profile.

    sub_agents: whether the model may start other agents. config: further entries of its
    config.toml, by dotted name. env: variables beside the profile's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sub_agents: bool = False
    config: dict[str, str | int | bool] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)


class MiniSweAgentSettings(BaseModel):
    """`harness.settings` of the `mini-swe-agent` profile.

    step_limit: most model turns of one execution, 0 for no limit. config_path: its YAML file
    instead of the one that it brings. env: variables beside the profile's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_limit: Annotated[int, Field(ge=0)] = 0
    config_path: str | None = None
    env: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessProfile:
    """name: as the job file says it. settings: the model that `harness.settings` must fit.
    origin: reads a request's role and agent out of what the harness shows. class_order: the roles
    that are admitted to training, the highest first."""

    name: str
    settings: type[BaseModel]
    origin: ReadOrigin
    class_order: tuple[RequestRole, ...] = CLASS_ORDER

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
        HarnessProfile(name="llm", settings=LlmSettings, origin=main_origin),
        HarnessProfile(name="command", settings=CommandSettings, origin=generic_origin),
        HarnessProfile(name="claude-code", settings=ClaudeCodeSettings, origin=claude_code_origin),
        HarnessProfile(name="codex", settings=CodexSettings, origin=codex_origin),
        HarnessProfile(name="mini-swe-agent", settings=MiniSweAgentSettings, origin=main_origin),
    )
}


def harness_profile(name: str) -> HarnessProfile:
    """Raises UnknownHarness, which lists the names there are."""
    profile = _PROFILES.get(name)
    if profile is None:
        known = ", ".join(sorted(_PROFILES))
        raise UnknownHarness(f"no harness {name!r}; known: {known}")
    return profile
