"""What an engine is started with: one carrier, and the command that each kind makes of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gyre.cell_agent.child_environment import child_environment
from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.errors import EngineError
from gyre.cell_agent.engine.sglang import launch as sglang
from gyre.cell_agent.engine.sglang.client import Device, SglangClient
from gyre.cell_agent.engine.tensors import ModelShapes
from gyre.cell_agent.gpus import sees_gpu
from gyre.contracts.engine_job import SGLANG_RESERVED_TOKENS

EngineKind = Literal["local", "sglang"]

LOCAL_MODULE = "gyre.cell_agent.engine.local"
START_TIMEOUT_S: Mapping[EngineKind, float] = {"local": 180.0, "sglang": 600.0}
"""SGLang's boot is a minute of one core, and the cells of a machine boot at once."""

MIGRATION_KEY = "GYRE_MIGRATION_KEY"
"""Where an engine finds it; `local.options` reads it."""

PYTHON_PLACES = frozenset({"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"})

PREFIX_CACHE_TOKENS = 32_768
"""What an engine on a CPU caches beyond the calls that run."""


class EngineStartError(EngineError):
    """The engine did not come up; the message ends with the last line of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """decode_tokens_per_s: emulated speed of each request, None for the machine's own.
    migration_key: whose bearers may copy cached prefixes, None for nobody. threads: of each of its
    processes. tensor: ranks. memory_fraction: of the device, None for the engine's own choice.
    python: of SGLang's environment, None where it is not installed. device: of SGLang alone."""

    kind: EngineKind
    model_path: str
    weight_version: str
    context_tokens: int
    max_running_requests: int
    seed: int
    host: str
    threads: int
    decode_tokens_per_s: float | None = None
    migration_key: str | None = None
    tensor: int = 1
    memory_fraction: float | None = None
    python: Path | None = None
    device: Device = "cpu"


def command_of(launch: EngineLaunch, port: int) -> tuple[list[str], dict[str, str]]:
    """Command line and environment. Raises EngineStartError: it cannot be started here."""
    match launch.kind:
        case "local":
            return _local_command(launch, port), _environment(launch)
        case "sglang":
            return _sglang_command(launch, port)


def client_of(launch: EngineLaunch, port: int) -> EngineClient:
    """What talks to it. Reads the model's shapes. Raises BadWeightsError."""
    url = f"http://{launch.host}:{port}"
    shapes = ModelShapes.of(Path(launch.model_path))
    match launch.kind:
        case "local":
            return EngineClient(url, shapes=shapes)
        case "sglang":
            return SglangClient(url, device=launch.device, shapes=shapes)


def startable(python: Path | None) -> tuple[EngineKind, ...]:
    """The kinds that can be started. python: of SGLang's environment."""
    return ("local",) if python is None else ("local", "sglang")


def visible_device(environ: Mapping[str, str]) -> Device:
    """Where an engine would compute: on a GPU unless there is none, or it is hidden."""
    return "cuda" if sees_gpu(environ) else "cpu"


def _local_command(launch: EngineLaunch, port: int) -> list[str]:
    if launch.tensor > 1:
        raise EngineStartError("engine.tensor: the local engine has one rank; leave it out")
    command = [
        sys.executable,
        *("-m", LOCAL_MODULE, "--model-path", launch.model_path),
        *("--host", launch.host, "--port", str(port)),
        *("--weight-version", launch.weight_version),
        *("--context-length", str(launch.context_tokens)),
        *("--max-running-requests", str(launch.max_running_requests)),
        *("--max-total-tokens", str(PREFIX_CACHE_TOKENS)),
        *("--random-seed", str(launch.seed), "--threads", str(launch.threads)),
    ]
    if launch.decode_tokens_per_s is not None:
        command += ["--emulate-decode-tokens-per-s", str(launch.decode_tokens_per_s)]
    return command


def _sglang_command(launch: EngineLaunch, port: int) -> tuple[list[str], dict[str, str]]:
    if launch.python is None:
        raise EngineStartError("SGLang is not installed: run `gyre engines install sglang`")
    environment = _environment(launch)
    slots = launch.max_running_requests * (launch.context_tokens + SGLANG_RESERVED_TOKENS)
    common = sglang.common_arguments(
        model_path=launch.model_path,
        host=launch.host,
        port=port,
        weight_version=launch.weight_version,
        context_tokens=launch.context_tokens,
        max_running_requests=launch.max_running_requests,
        seed=launch.seed,
    )
    if launch.device == "cuda":
        command = sglang.gpu_command(
            str(launch.python), tensor=launch.tensor, memory_fraction=launch.memory_fraction
        )
        return [*command, *common], environment
    if launch.tensor > 1:
        raise EngineStartError("engine.tensor: SGLang on a CPU was never run on several ranks")
    cache_tokens = slots + PREFIX_CACHE_TOKENS
    command = sglang.cpu_command(
        str(launch.python), cache_tokens=cache_tokens, memory_fraction=launch.memory_fraction
    )
    return [*command, *common], sglang.cpu_environment(environment, threads=launch.threads)


def _environment(launch: EngineLaunch) -> dict[str, str]:
    told = {} if launch.migration_key is None else {MIGRATION_KEY: launch.migration_key}
    kept = child_environment(launch.threads, told)
    if launch.kind == "local":
        return kept
    # Another environment's Python: what this one is told to import is none of its packages.
    return {name: value for name, value in kept.items() if name not in PYTHON_PLACES}
