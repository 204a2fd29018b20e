"""The command that starts SGLang 0.5.23 on a CPU, in an environment of its own.

That environment holds nothing of ours: `cpu/` is run and found by its path. A GPU needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CPU = Path(__file__).parent / "cpu"
# Beyond the weights: SGLang takes the rest of its share for cached keys and values.
MEM_FRACTION_STATIC = "0.05"
# Of its context length SGLang keeps the last two tokens to itself, and takes no input that leaves
# less than five beside them: with these on top a call has all of what it was promised.
RESERVED_TOKENS = 7


def cpu_command(
    python: str,
    *,
    model_path: str,
    host: str,
    port: int,
    weight_version: str,
    context_tokens: int,
    cache_tokens: int,
    dtype: str = "float32",
) -> list[str]:
    """python: interpreter of SGLang's environment. context_tokens: of a call, input and output; the
    model must have positions for RESERVED_TOKENS more. cache_tokens: that the KV memory holds, of
    running calls and of the prefix cache together. dtype: fp32 is exact beside a reference, and on
    most CPUs faster than bf16."""
    return [
        python,
        str(CPU / "serve.py"),
        *("--model-path", model_path, "--host", host, "--port", str(port)),
        *("--weight-version", weight_version),
        *("--context-length", str(context_tokens + RESERVED_TOKENS)),
        *("--max-total-tokens", str(cache_tokens), "--dtype", dtype),
        *("--device", "cpu", "--attention-backend", "torch_native"),
        *("--mem-fraction-static", MEM_FRACTION_STATIC, "--enable-metrics"),
    ]


def cpu_environment(base: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """`base` with what SGLang needs. threads: of each of its processes."""
    path = base.get("PYTHONPATH")
    return dict(base) | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": str(threads),
        # Its helpers that are no forks of the launcher find `sgl_kernel` by this.
        "PYTHONPATH": str(CPU) if not path else f"{CPU}:{path}",
    }
