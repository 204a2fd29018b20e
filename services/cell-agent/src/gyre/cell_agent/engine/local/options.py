"""The engine's command line; flags carry SGLang's names where SGLang has them."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MIGRATION_KEY = "GYRE_MIGRATION_KEY"
"""Not a flag: command lines are there for everybody on the machine to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Settings of one engine process; sizes in tokens and requests.

    emulate_decode_tokens_per_s: of each running request; None: as fast as the machine goes.
    migration_key: lets its bearers copy cached prefixes; from the environment, None: nobody may.
    """

    model_path: Path
    host: str
    port: int
    max_running_requests: int
    context_length: int
    max_total_tokens: int
    weight_version: str
    random_seed: int
    threads: int
    incremental_streaming_output: bool
    log_level: str
    emulate_decode_tokens_per_s: float | None
    migration_key: str | None = field(default=None, repr=False)


def parse_options(arguments: Sequence[str]) -> EngineOptions:
    """Parse and check the command line; exits with status 2 and one line on bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m gyre.cell_agent.engine.local",
        description="A small batched CPU engine with SGLang's HTTP contract.",
    )
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000, help="0 takes a free one")
    parser.add_argument("--max-running-requests", type=_positive, default=16)
    parser.add_argument("--context-length", type=_positive, default=1024)
    parser.add_argument(
        "--max-total-tokens",
        type=_positive,
        default=32_768,
        help="rows of the prefix cache, beside the slots of running requests",
    )
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--random-seed", type=int, default=0)
    parser.add_argument("--threads", type=_positive, default=1, help="torch threads")
    parser.add_argument("--incremental-streaming-output", action="store_true")
    parser.add_argument("--log-level", default="info")
    parser.add_argument(
        "--emulate-decode-tokens-per-s",
        type=_positive_float,
        help="hold each running request to this speed (emulation)",
    )
    return EngineOptions(
        **vars(parser.parse_args(arguments)), migration_key=os.environ.get(MIGRATION_KEY) or None
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value
