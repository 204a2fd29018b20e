"""`llm` 0.36: one prompt with the tools of a Python file, up to `chain_limit` model turns."""

from __future__ import annotations

import json

from gyre.core.harness import LlmSettings
from gyre.runner.errors import HarnessMisconfigured
from gyre.runner.keeper import WarmStart
from gyre.runner.profiles.base import (
    ExecutionContext,
    HarnessProfile,
    PreparedHarness,
    base_env,
)

_WARM_START = WarmStart(
    preload=("llm.cli", "llm.default_plugins.openai_models", "openai"),
    calls=("llm.plugins:load_plugins",),
    entry="llm.cli:cli",
    env={"LLM_LOAD_PLUGINS": ""},
)


def _prepare(context: ExecutionContext) -> PreparedHarness:
    """The model list is a YAML file; a JSON text is one. `prompt` and `--` keep a task's text from
    being read as a subcommand or an option."""
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
        **base_env(context),
        "LLM_USER_PATH": str(user_dir),
        "LLM_LOAD_PLUGINS": "",
        "OPENAI_API_KEY": context.api_key,
    }
    files = {user_dir / "extra-openai-models.yaml": json.dumps([model], indent=1) + "\n"}
    return PreparedHarness(argv=argv, env=env, files=files)


LLM = HarnessProfile(name="llm", warm=_WARM_START, needs_python=True, prepare=_prepare)
