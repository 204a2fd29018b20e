"""Weight updates, cache flushes and memory: the control operations of the engine.

Each returns (success, message) as the contract words them; what is refused leaves the weights
in service unchanged.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from pathlib import Path

import torch

from gyre.cell_agent.engine.local.engine import LocalEngine
from gyre.cell_agent.engine.local.errors import LocalEngineError, WeightsError
from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine.local.weights import (
    State,
    checksum,
    decode_safetensors,
    read_checkpoint,
)

UPDATED = "Succeeded to update model weights."
NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running "
    "or queued. Retract or finish them, then call /flush_cache."
)
FLUSH_POLL_S = 0.01

Outcome = tuple[bool, str]


async def update_from_disk(
    engine: LocalEngine,
    model_path: str,
    *,
    weight_version: str | None,
    flush_cache: bool,
    abort_all_requests: bool,
) -> Outcome:
    """Load a checkpoint directory of the same model.

    Paused, it applies at once between two tokens; otherwise it waits until the running
    requests have ended, while new ones wait. The files are read before the engine is held.
    """
    try:
        state = await asyncio.to_thread(read_checkpoint, Path(model_path))
    except LocalEngineError as error:
        return False, f"Failed to update model weights: {error}"
    outcome = await _replace(
        engine,
        state,
        complete=True,
        weight_version=weight_version,
        flush_cache=flush_cache,
        abort_all_requests=abort_all_requests,
    )
    if outcome[0]:
        engine.model_path = model_path
    return outcome


async def update_from_tensors(
    engine: LocalEngine,
    payloads: list[str],
    *,
    weight_version: str | None,
    flush_cache: bool,
    abort_all_requests: bool,
) -> Outcome:
    """Load base64 safetensors documents, which may hold some of the parameters.

    SGLang takes pickles here, one for each tensor-parallel rank; this engine never unpickles
    and has one rank, so it takes any number of documents and applies them as one update.
    """
    if not engine.update_session_open:
        return False, "no weight-update session is open; call begin_weight_update() first"
    try:
        state: dict[str, torch.Tensor] = {}
        for payload in payloads:
            state |= decode_safetensors(base64.b64decode(payload, validate=True))
    except (WeightsError, binascii.Error) as error:
        return False, f"Failed to update model weights: {error}"
    return await _replace(
        engine,
        state,
        complete=False,
        weight_version=weight_version,
        flush_cache=flush_cache,
        abort_all_requests=abort_all_requests,
    )


def begin_session(engine: LocalEngine) -> Outcome:
    """Open the session that tensor updates need."""
    if engine.update_session_open:
        return False, ("a weight-update session is already open; call end_weight_update() first")
    engine.update_session_open = True
    return True, "Success"


def end_session(engine: LocalEngine) -> Outcome:
    """Close it."""
    if not engine.update_session_open:
        return False, "no weight-update session is open; call begin_weight_update() first"
    engine.update_session_open = False
    return True, "Success"


async def set_version(engine: LocalEngine, version: str, *, abort_all_requests: bool) -> None:
    """Rename the version of the weights in service."""
    if abort_all_requests:
        await engine.abort("", all_requests=True)

    def rename(scheduler: Scheduler) -> None:
        scheduler.weight_version = version

    await engine.thread.call(rename)


async def flush(engine: LocalEngine, timeout_s: float) -> bool:
    """Drop cached prefixes, trying again until `timeout_s` while requests run."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not await engine.thread.call(lambda scheduler: scheduler.flush()):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(FLUSH_POLL_S)
    return True


async def weights_checksum(engine: LocalEngine) -> str:
    """Digest of the weights in service (`weights.checksum`)."""
    return await engine.thread.call(lambda scheduler: checksum(scheduler.runner.model.parameters))


async def release_memory(engine: LocalEngine, tags: list[str] | None) -> None:
    """Give the KV memory back; the weights stay (a CPU engine keeps them where they are)."""
    if not tags or "kv_cache" in tags:
        await engine.thread.call(lambda scheduler: scheduler.release_memory())


async def resume_memory(engine: LocalEngine, tags: list[str] | None) -> None:
    """Take the KV memory again."""
    if not tags or "kv_cache" in tags:
        await engine.thread.call(lambda scheduler: scheduler.resume_memory())


async def _replace(
    engine: LocalEngine,
    state: State,
    *,
    complete: bool,
    weight_version: str | None,
    flush_cache: bool,
    abort_all_requests: bool,
) -> Outcome:
    def replace(scheduler: Scheduler) -> bool:
        scheduler.replace_weights(state, complete=complete, version=weight_version)
        return not flush_cache or scheduler.flush()

    if abort_all_requests:
        await engine.abort("", all_requests=True)
    try:
        async with engine.gate.update():
            flushed = await engine.thread.call(replace)
    except WeightsError as error:
        return False, f"Failed to update model weights: {error}"
    if not flushed:
        return False, NOT_FLUSHED
    suffix = f" Weight version updated to {weight_version}." if weight_version else ""
    return True, UPDATED + suffix
