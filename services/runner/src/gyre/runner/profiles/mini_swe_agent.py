"""mini-swe-agent 2.4.6 over chat completions: one bash tool, no streams."""

from __future__ import annotations

from gyre.core.harness import MiniSweAgentSettings
from gyre.runner.errors import HarnessMisconfigured
from gyre.runner.profiles.base import (
    ExecutionContext,
    HarnessProfile,
    PreparedHarness,
    base_env,
)

MODEL = "openai/policy-model"
_DEFAULT_CONFIG = "mini.yaml"


def _prepare(context: ExecutionContext) -> PreparedHarness:
    settings = MiniSweAgentSettings.model_validate(dict(context.settings))
    if context.python is None:
        raise HarnessMisconfigured(
            "harness mini-swe-agent: no Python environment of it is set"
            " (make harness HARNESS=mini-swe-agent)"
        )
    argv = [
        str(context.python.parent / "mini"),
        f"--model={MODEL}",
        "--yolo",
        "--exit-immediately",
        f"--config={settings.config_path or _DEFAULT_CONFIG}",
        f"--config=agent.step_limit={settings.step_limit}",
        f"--output={context.home / 'trajectory.json'}",
        f"--task={context.prompt}",
    ]
    env = {
        **base_env(context),
        "OPENAI_API_KEY": context.api_key,
        "OPENAI_API_BASE": context.base_url,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(context.home / "mini-swe-agent"),
        # The table of prices that its client library would fetch is in the library too.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return PreparedHarness(argv=tuple(argv), env=env | settings.env)


MINI_SWE_AGENT = HarnessProfile(
    name="mini-swe-agent", warm=None, needs_python=True, prepare=_prepare
)
