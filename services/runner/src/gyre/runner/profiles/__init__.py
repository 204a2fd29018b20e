"""Harness profiles: how to start each harness that `gyre.core.harness` knows.

A profile turns one execution's facts into a command line, a complete environment and the
configuration files that the program wants. The program itself is not touched.
"""

from __future__ import annotations

from gyre.runner.errors import HarnessMisconfigured
from gyre.runner.profiles.base import ExecutionContext, HarnessProfile, PreparedHarness
from gyre.runner.profiles.claude_code import CLAUDE_CODE
from gyre.runner.profiles.codex import CODEX
from gyre.runner.profiles.command import COMMAND
from gyre.runner.profiles.llm import LLM
from gyre.runner.profiles.mini_swe_agent import MINI_SWE_AGENT

__all__ = ["ExecutionContext", "HarnessProfile", "PreparedHarness", "profile", "profile_names"]

_PROFILES = {known.name: known for known in (LLM, COMMAND, CLAUDE_CODE, CODEX, MINI_SWE_AGENT)}


def profile(name: str) -> HarnessProfile:
    """Raises HarnessMisconfigured, which lists the names there are."""
    known = _PROFILES.get(name)
    if known is None:
        raise HarnessMisconfigured(f"no harness {name!r}; known: {', '.join(sorted(_PROFILES))}")
    return known


def profile_names() -> tuple[str, ...]:
    """Every harness that can be started, sorted."""
    return tuple(sorted(_PROFILES))
