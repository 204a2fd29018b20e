"""Harness profiles: how to start each harness that `gyre.core.harness` knows.

A profile turns one execution's facts into a command line, a complete environment and the
configuration files that the program wants. The program itself is not touched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.core.harness import CommandSettings, LlmSettings, harness_profile
from gyre.runner.errors import HarnessMisconfigured
from gyre.runner.keeper import WarmStart

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext:
    """What a profile may know of an execution.

    home, tmp: directories of this attempt alone. proxy_url: scheme, host and port of the proxy.
    api_key: made for this attempt. model_name: what requests shall ask for. settings: the job's
    `harness.settings`. python: the interpreter of the harness's environment, None if it has none.
    """

    prompt: str
    workspace: Path
    home: Path
    tmp: Path
    proxy_url: str
    api_key: str
    model_name: str
    settings: Mapping[str, Any]
    python: Path | None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessProfile:
    """name: as the job file says it. warm: what to import ahead, None for programs that are
    simply executed. needs_python: whether the harness lives in a Python environment of its own."""

    name: str
    warm: WarmStart | None
    needs_python: bool
    prepare: Callable[[ExecutionContext], PreparedHarness]

    def validate(self, settings: Mapping[str, Any]) -> None:
        """Raises HarnessMisconfigured with one line that names the field."""
        try:
            harness_profile(self.name).check(dict(settings))
        except ValueError as error:
            raise HarnessMisconfigured(str(error)) from error


def profile(name: str) -> HarnessProfile:
    """Raises HarnessMisconfigured, which lists the names there are."""
    known = _PROFILES.get(name)
    if known is None:
        raise HarnessMisconfigured(f"no harness {name!r}; known: {', '.join(sorted(_PROFILES))}")
    return known


def profile_names() -> tuple[str, ...]:
    """Every harness that can be started, sorted."""
    return tuple(sorted(_PROFILES))


def _base_env(context: ExecutionContext) -> dict[str, str]:
    return {
        "HOME": str(context.home),
        "TMPDIR": str(context.tmp),
        "PATH": SYSTEM_PATH,
        "LANG": "C.UTF-8",
    }


def _prepare_llm(context: ExecutionContext) -> PreparedHarness:
    """`llm` 0.36: one prompt with the tools of a Python file, up to `chain_limit` model turns.

    Its model list is a YAML file; a JSON text is one. `prompt` and `--` keep a task's text from
    being read as a subcommand or an option.
    """
    settings = LlmSettings.model_validate(dict(context.settings))
    if context.python is None:
        raise HarnessMisconfigured("harness llm: no Python environment of it is set")
    user_dir = context.home / "llm"
    model = {
        "model_id": context.model_name,
        "model_name": context.model_name,
        "api_base": context.base_url,
        "supports_tools": True,
        "api_key_name": "gyre",  # without a name of a key the program sends none, not even env's
    }
    argv = (
        str(context.python.parent / "llm"),
        "prompt",
        "--model", context.model_name,
        "--functions", settings.functions_path,
        "--no-stream",
        "--no-log",
        "--chain-limit", str(settings.chain_limit),
        "--", context.prompt,
    )  # fmt: skip
    env = {
        **_base_env(context),
        "LLM_USER_PATH": str(user_dir),
        "LLM_LOAD_PLUGINS": "",
        "OPENAI_API_KEY": context.api_key,
    }
    files = {user_dir / "extra-openai-models.yaml": json.dumps([model], indent=1) + "\n"}
    return PreparedHarness(argv=argv, env=env, files=files)


def _prepare_command(context: ExecutionContext) -> PreparedHarness:
    """Any program: placeholders in the job's argv and env are replaced, nothing else."""
    settings = CommandSettings.model_validate(dict(context.settings))
    values = {
        "{prompt}": context.prompt,
        "{base_url}": context.base_url,
        "{api_key}": context.api_key,
        "{model}": context.model_name,
        "{workspace}": str(context.workspace),
    }

    def filled(text: str) -> str:
        # The prompt goes last: braces in a task's text are no placeholders.
        for placeholder in ("{base_url}", "{api_key}", "{model}", "{workspace}", "{prompt}"):
            text = text.replace(placeholder, values[placeholder])
        return text

    env = _base_env(context)
    env |= {name: filled(value) for name, value in settings.env.items()}
    return PreparedHarness(argv=tuple(map(filled, settings.argv)), env=env)


_LLM_WARM_START = WarmStart(
    preload=("llm.cli", "llm.default_plugins.openai_models", "openai"),
    calls=("llm.plugins:load_plugins",),
    entry="llm.cli:cli",
    env={"LLM_LOAD_PLUGINS": ""},
)

_PROFILES = {
    known.name: known
    for known in (
        HarnessProfile(name="llm", warm=_LLM_WARM_START, needs_python=True, prepare=_prepare_llm),
        HarnessProfile(name="command", warm=None, needs_python=False, prepare=_prepare_command),
    )
}
