"""Claude Code 2.1.220, unmodified: one prompt in print mode.

Its reads of other machines are switched off, and every name of a model that it has for itself is
the policy's. The model's name decides what requests look like: one that it does not know gets the
plainest form, so it is always the same here and not the job's.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gyre.core.harness import ClaudeCodeSettings
from gyre.runner.profiles.base import (
    ExecutionContext,
    HarnessProfile,
    PreparedHarness,
    base_env,
    required_program,
)

MODEL = "policy-model"
# Beyond a call's own time: the client never gives up on a call before the proxy does.
_PATIENCE_S = 60.0
# Whole results are one line of some kB; of more than this only the end is read.
_MAX_RESULT_BYTES = 2**20


def _prepare(context: ExecutionContext) -> PreparedHarness:
    settings = ClaudeCodeSettings.model_validate(dict(context.settings))
    argv = [
        required_program(context, "claude-code"),
        "--print",
        "--output-format=json",
        "--dangerously-skip-permissions",
        f"--model={MODEL}",
    ]
    if settings.bare:
        argv.append("--bare")
    if settings.tools:
        argv.append("--tools=" + ",".join(settings.tools))
    if settings.system_prompt is not None:
        argv.append(f"--system-prompt={settings.system_prompt}")
    if settings.append_system_prompt is not None:
        argv.append(f"--append-system-prompt={settings.append_system_prompt}")
    argv += ["--", context.prompt]
    env = base_env(context) | _endpoint(context) | _manners(context)
    if not settings.thinking:
        env["MAX_THINKING_TOKENS"] = "0"
    return PreparedHarness(argv=tuple(argv), env=env | settings.env)


def _endpoint(context: ExecutionContext) -> dict[str, str]:
    """Where its models are, which all are one, and how much they take."""
    names = ("OPUS", "SONNET", "HAIKU")
    return {
        "ANTHROPIC_BASE_URL": context.proxy_url.rstrip("/"),
        "ANTHROPIC_API_KEY": context.api_key,
        **{f"ANTHROPIC_DEFAULT_{name}_MODEL": MODEL for name in names},
        "CLAUDE_CODE_SUBAGENT_MODEL": MODEL,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(context.context_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(context.max_new_tokens),
    }


def _manners(context: ExecutionContext) -> dict[str, str]:
    """Waits as long as calls may take, writes into its own directories, talks to nobody else."""
    timeout_ms = str(int((context.call_timeout_s + _PATIENCE_S) * 1000))
    return {
        "IS_SANDBOX": "1",  # without it the program refuses to skip permissions as root
        "CLAUDE_CODE_TMPDIR": str(context.tmp),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        # How long its end may wait for agents in the background, else ten minutes.
        "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS": str(int(context.timeout_s * 1000)),
        "API_FORCE_IDLE_TIMEOUT": "0",
        "API_TIMEOUT_MS": timeout_ms,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": timeout_ms,
    }


def _reported_error(stdout: Path) -> str | None:
    """The result's own verdict: after a failed API call its `subtype` may be "success"."""
    result = _result(stdout)
    if result is None or result.get("is_error") is not True:
        return None
    return str(result.get("result") or result.get("subtype") or "the result says is_error")[:200]


def _result(stdout: Path) -> dict[str, Any] | None:
    """The last line of the output if it is a result."""
    try:
        with stdout.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _MAX_RESULT_BYTES))
            lines = stream.read().strip().splitlines()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("type") == "result" else None


CLAUDE_CODE = HarnessProfile(
    name="claude-code",
    warm=None,
    needs_python=False,
    prepare=_prepare,
    reported_error=_reported_error,
)
