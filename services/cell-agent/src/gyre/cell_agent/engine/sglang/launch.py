"""The commands that start SGLang 0.5.23: plain on a GPU, with what it lacks on a CPU.

Its environment holds nothing of ours: `cpu/` is run and found by its path. A GPU needs neither.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from gyre.contracts.engine_job import SGLANG_RESERVED_TOKENS

CPU = Path(__file__).parent / "cpu"
# Of the memory that is free before the weights are loaded: what may be gone when the cache is made.
# On a CPU others load meanwhile, engines and trainers; `cache_tokens` bounds the cache.
MEM_FRACTION_STATIC = 0.5

INSTALLED = "engine_sglang_python"
"""Its key in `gyre-env.json`, which lies in this environment's directory."""


def installed_python(told: Path | None = None) -> Path | None:
    """The interpreter of SGLang's environment: `told`, else what was installed for this checkout;
    None where there is none."""
    known = Path(sys.prefix) / "gyre-env.json"
    if told is None and known.exists():
        found = json.loads(known.read_text(encoding="utf-8")).get(INSTALLED)
        told = None if found is None else Path(found)
    return told if told is not None and told.exists() else None


def common_arguments(
    *,
    model_path: str,
    host: str,
    port: int,
    weight_version: str,
    context_tokens: int,
    max_running_requests: int,
    seed: int,
) -> list[str]:
    """context_tokens: of a call, input and output; the model must have positions for
    SGLANG_RESERVED_TOKENS more."""
    return [
        *("--model-path", model_path, "--host", host, "--port", str(port)),
        *("--weight-version", weight_version),
        *("--context-length", str(context_tokens + SGLANG_RESERVED_TOKENS)),
        *("--max-running-requests", str(max_running_requests)),
        *("--random-seed", str(seed), "--enable-metrics"),
    ]


def cpu_command(
    python: str,
    *,
    cache_tokens: int,
    memory_fraction: float | None = None,
    dtype: str = "float32",
) -> list[str]:
    """python: interpreter of SGLang's environment. cache_tokens: that the KV memory holds, of
    running calls and of the prefix cache together. dtype: fp32 is exact beside a reference, and on
    most CPUs faster than bf16; `checksum.cpu_checksum` counts on it."""
    fraction = MEM_FRACTION_STATIC if memory_fraction is None else memory_fraction
    return [
        python,
        str(CPU / "serve.py"),
        *("--max-total-tokens", str(cache_tokens), "--dtype", dtype),
        *("--device", "cpu", "--attention-backend", "torch_native"),
        *("--mem-fraction-static", str(fraction)),
        # Else an idle server polls with a whole core, which trainers and other engines need.
        "--sleep-on-idle",
    ]


def gpu_command(python: str, *, tensor: int, memory_fraction: float | None) -> list[str]:
    """Never run. The memory saver is what makes a release give memory back."""
    command = [python, "-m", "sglang.launch_server", "--enable-memory-saver"]
    command += ["--tp-size", str(tensor)]
    if memory_fraction is not None:
        command += ["--mem-fraction-static", str(memory_fraction)]
    return command


def cpu_environment(base: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """`base` with what SGLang needs. threads: of each of its processes."""
    path = base.get("PYTHONPATH")
    return dict(base) | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": str(threads),
        # Its helpers that are no forks of the launcher find `sgl_kernel` by this.
        "PYTHONPATH": str(CPU) if not path else f"{CPU}:{path}",
    }
