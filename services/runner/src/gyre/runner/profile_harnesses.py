"""The harness of a job by its profile's name (`profiles/`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gyre.contracts.job import JobSpec
from gyre.runner.errors import HarnessMisconfigured, WorkspaceError
from gyre.runner.profiles import ExecutionContext, profile
from gyre.runner.sandbox import Command, Limits
from gyre.runner.settings import RunnerSettings
from gyre.runner.workspace import AttemptDir

_PYTHON = re.compile(r"harness_([\w-]+)_python")
_PROGRAM = re.compile(r"harness_([\w-]+)_program")


def read_environments(path: Path | None) -> dict[str, Path]:
    """The interpreters that GYRE_HARNESS_ENVS names, by profile; {} without such a file.

    Raises HarnessMisconfigured when the file cannot be read.
    """
    return _read(path, _PYTHON)


def read_programs(path: Path | None) -> dict[str, Path]:
    """The native programs that GYRE_HARNESS_ENVS names, by profile; as `read_environments`."""
    return _read(path, _PROGRAM)


def _read(path: Path | None, name_of: re.Pattern[str]) -> dict[str, Path]:
    if path is None:
        return {}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        found = {name_of.fullmatch(name): Path(value) for name, value in raw.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise HarnessMisconfigured(f"GYRE_HARNESS_ENVS: {path}: {error}") from error
    return {match[1]: value for match, value in found.items() if match is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileHarnesses:
    """Implements Harnesses with the profiles that this release knows. pythons, programs: where the
    harnesses' environments and native programs are, by profile."""

    settings: RunnerSettings
    pythons: Mapping[str, Path]
    programs: Mapping[str, Path] = field(default_factory=dict)

    def command(
        self, spec: JobSpec, directory: AttemptDir, *, prompt: str, key: str, proxy_url: str
    ) -> Command:
        chosen = profile(spec.harness.profile)
        chosen.validate(spec.harness.settings)
        context = ExecutionContext(
            prompt=prompt,
            workspace=directory.workspace,
            home=directory.harness_home,
            tmp=directory.tmp,
            proxy_url=proxy_url,
            api_key=key,
            model_name=spec.name,
            settings=spec.harness.settings,
            python=self.pythons.get(chosen.name),
            program=self.programs.get(chosen.name),
            context_tokens=spec.model.context_tokens,
            max_new_tokens=spec.rollout.max_new_tokens,
            call_timeout_s=spec.rollout.call_timeout_s,
            timeout_s=spec.harness.timeout_s,
        )
        prepared = chosen.prepare(context)
        try:
            prepared.write_files()
        except OSError as error:
            raise WorkspaceError(f"harness {chosen.name}: {error}") from error
        return Command(
            profile=chosen.name,
            argv=prepared.argv,
            env=prepared.env,
            cwd=directory.workspace,
            stdout=_stdout(directory),
            stderr=directory.logs / "stderr.log",
            status=directory.status,
            limits=Limits(
                max_file_bytes=self.settings.runner_max_file_bytes,
                max_open_files=self.settings.runner_max_open_files,
            ),
        )

    def reported_error(self, spec: JobSpec, directory: AttemptDir) -> str | None:
        return profile(spec.harness.profile).reported_error(_stdout(directory))


def _stdout(directory: AttemptDir) -> Path:
    return directory.logs / "stdout.log"
