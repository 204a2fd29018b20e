"""Any program: placeholders in the job's argv and env are replaced, nothing else."""

from __future__ import annotations

from gyre.core.harness import CommandSettings
from gyre.runner.profiles.base import (
    ExecutionContext,
    HarnessProfile,
    PreparedHarness,
    base_env,
)


def _prepare(context: ExecutionContext) -> PreparedHarness:
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

    env = base_env(context)
    env |= {name: filled(value) for name, value in settings.env.items()}
    return PreparedHarness(argv=tuple(map(filled, settings.argv)), env=env)


COMMAND = HarnessProfile(name="command", warm=None, needs_python=False, prepare=_prepare)
