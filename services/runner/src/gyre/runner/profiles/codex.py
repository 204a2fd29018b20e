"""Codex 0.171.0, unmodified: `codex exec` over the Responses API, which is the only one it has.

It compacts by its own count of tokens, before the served context is full: an overflow that it is
told of is fatal to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from gyre.core.harness import CodexSettings
from gyre.runner.profiles.base import (
    ExecutionContext,
    HarnessProfile,
    PreparedHarness,
    base_env,
    required_program,
)

MODEL = "policy-model"
_KEY_VARIABLE = "GYRE_MODEL_KEY"
# Beyond a call's own time: the client never gives up on a call before the proxy does.
_PATIENCE_S = 60.0

Toml = Mapping[str, str | int | bool]


def _prepare(context: ExecutionContext) -> PreparedHarness:
    settings = CodexSettings.model_validate(dict(context.settings))
    home = context.home / ".codex"
    argv = (
        required_program(context, "codex"),
        "exec",
        "--skip-git-repo-check",
        "--color=never",
        "--",
        context.prompt,
    )
    env = {**base_env(context), "CODEX_HOME": str(home), _KEY_VARIABLE: context.api_key}
    config = _config(context, sub_agents=settings.sub_agents) | dict(settings.config)
    return PreparedHarness(
        argv=argv, env=env | settings.env, files={home / "config.toml": _toml(config)}
    )


def _config(context: ExecutionContext, *, sub_agents: bool) -> dict[str, str | int | bool]:
    """By dotted name, as the program's own reference lists them."""
    timeout_ms = int((context.call_timeout_s + _PATIENCE_S) * 1000)
    provider = "model_providers.gyre"
    return {
        "model": MODEL,
        "model_provider": "gyre",
        "approval_policy": "never",
        "sandbox_mode": "danger-full-access",
        "web_search": "disabled",
        "model_context_window": context.context_tokens,
        "model_auto_compact_token_limit": _compaction_limit(context),
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        "features.goals": False,
        "agents.enabled": sub_agents,
        f"{provider}.name": "gyre",
        f"{provider}.base_url": context.base_url,
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": _KEY_VARIABLE,
        f"{provider}.stream_idle_timeout_ms": timeout_ms,
    }


def _compaction_limit(context: ExecutionContext) -> int:
    """Leaves room for a whole answer and a tool's result after the last count, but never calls
    less than half of the context full."""
    room = context.context_tokens - 2 * context.max_new_tokens
    return max(context.context_tokens // 2, room)


def _toml(config: Toml) -> str:
    """One `key = value` a line; JSON's strings, integers and booleans are TOML's too."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())


CODEX = HarnessProfile(name="codex", warm=None, needs_python=False, prepare=_prepare)
