"""What a harness profile is to the runner: an execution's facts to a command that can be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.core.harness import harness_profile
from gyre.runner.errors import HarnessMisconfigured
from gyre.runner.keeper import WarmStart

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext:
    """What a profile may know of an execution.

    home, tmp: directories of this attempt alone. proxy_url: scheme, host and port of the proxy.
    api_key: made for this attempt. model_name: what requests shall ask for. settings: the job's
    `harness.settings`. python: the interpreter of the harness's environment, program: its native
    program, each None if it has none. context_tokens: the served context length. max_new_tokens,
    call_timeout_s: the job's, of one call. timeout_s: of the whole execution.
    """

    prompt: str
    workspace: Path
    home: Path
    tmp: Path
    proxy_url: str
    api_key: str
    model_name: str
    settings: Mapping[str, Any]
    python: Path | None = None
    program: Path | None = None
    context_tokens: int = 32_768
    max_new_tokens: int = 4096
    call_timeout_s: float = 240.0
    timeout_s: float = 3600.0

    @property
    def base_url(self) -> str:
        """The proxy's OpenAI-compatible API."""
        return f"{self.proxy_url.rstrip('/')}/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedHarness:
    """argv and the complete env of one execution; files: text by path, to be written before."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[Path, str] = field(default_factory=dict)

    def write_files(self) -> None:
        """Write the configuration files with their directories."""
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def says_nothing(stdout: Path) -> str | None:
    """Of a program whose exit status says it all."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessProfile:
    """name: as the job file says it. warm: what to import ahead, None for programs that are
    simply executed. needs_python: whether the harness lives in a Python environment of its own.
    reported_error: what the program's output says went wrong, whatever its exit status."""

    name: str
    warm: WarmStart | None
    needs_python: bool
    prepare: Callable[[ExecutionContext], PreparedHarness]
    reported_error: Callable[[Path], str | None] = says_nothing

    def validate(self, settings: Mapping[str, Any]) -> None:
        """Raises HarnessMisconfigured with one line that names the field."""
        try:
            harness_profile(self.name).check(dict(settings))
        except ValueError as error:
            raise HarnessMisconfigured(str(error)) from error


def base_env(context: ExecutionContext) -> dict[str, str]:
    """What every harness gets, and nothing of the runner's own environment."""
    return {
        "HOME": str(context.home),
        "TMPDIR": str(context.tmp),
        "PATH": SYSTEM_PATH,
        "LANG": "C.UTF-8",
    }


def required_program(context: ExecutionContext, name: str) -> str:
    """Raises HarnessMisconfigured, which says how to get it."""
    if context.program is None:
        raise HarnessMisconfigured(
            f"harness {name}: GYRE_HARNESS_ENVS names no harness_{name}_program"
            f" (make harness HARNESS={name})"
        )
    return str(context.program)
