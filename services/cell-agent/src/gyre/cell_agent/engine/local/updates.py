"""Weight updates, cache flushes and memory: the control operations of the engine.

Each returns (success, message) as the contract words them; what is refused leaves the weights
in service unchanged.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass
from pathlib import Path

import torch

from gyre.adapters.failpoints import failpoint
from gyre.cell_agent.engine.local.engine import LocalEngine
from gyre.cell_agent.engine.local.errors import LocalEngineError, UnavailableError, WeightsError
from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine.local.weights import (
    State,
    check_state,
    decode_safetensors,
    read_checkpoint,
)
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.engine.update_group import DTYPES, Place, UpdateGroup, UpdateGroupError
from gyre.core.policy_weights import weight_shapes

UPDATED = "Succeeded to update model weights."
NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running "
    "or queued. Retract or finish them, then call /flush_cache."
)
FLUSH_POLL_S = 0.01
GROUP_TIMEOUT_S = 300.0
"""For the others of an update group to come, and for each tensor of rank 0's."""

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
    outcome = await _replace(
        engine,
        state,
        complete=False,
        weight_version=weight_version,
        flush_cache=flush_cache,
        abort_all_requests=abort_all_requests,
    )
    if outcome[0] and weight_version is None:
        # An agent's last part brings the name.
        failpoint("engine.between_buckets")
    return outcome


async def join_group(engine: LocalEngine, place: Place) -> Outcome:
    """Meet the others of an update group; it stays until it is left."""
    if place.name in engine.groups:
        return False, f"Failed to initialize custom process group: {place.name} is there already."
    try:
        group = await asyncio.to_thread(UpdateGroup, place, timeout_s=GROUP_TIMEOUT_S)
    except UpdateGroupError as error:
        return False, f"Failed to initialize custom process group: {error}."
    engine.groups[place.name] = group
    return True, "Succeeded to initialize custom process group."


def leave_group(engine: LocalEngine, name: str) -> Outcome:
    """The others see this member as gone."""
    group = engine.groups.pop(name, None)
    if group is None:
        return False, "The group to be destroyed does not exist."
    group.close()
    return True, "Succeeded to destroy custom process group."


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """What rank 0 of a group is about to broadcast, in this order."""

    group: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


async def update_from_group(
    engine: LocalEngine,
    announced: Announced,
    *,
    weight_version: str | None,
    flush_cache: bool,
    abort_all_requests: bool,
) -> Outcome:
    """Receive some of the parameters from the group's rank 0 and load them.

    What does not fit is refused before it is received; rank 0 then waits in vain, as it does when
    this engine dies.
    """
    group = engine.groups.get(announced.group)
    if not engine.update_session_open:
        return False, (
            "update_weights_from_distributed must run between "
            "begin_weight_update() and end_weight_update()"
        )
    if group is None:
        return False, f"Failed to receive weights: no group {announced.group}"
    wrong = [name for name in announced.dtypes if name not in DTYPES]
    if wrong or not len(announced.names) == len(announced.dtypes) == len(announced.shapes):
        return False, "Failed to receive weights: names, dtypes and shapes do not agree"
    try:
        expected = weight_shapes(engine.config.shapes)
        meta = {
            name: torch.empty(tuple(shape), device="meta")
            for name, shape in zip(announced.names, announced.shapes, strict=True)
        }
        check_state(meta, expected, complete=False)
        tensors = await asyncio.to_thread(group.receive, announced.dtypes, announced.shapes)
    except (WeightsError, UpdateGroupError) as error:
        return False, f"Failed to receive weights: {error}"
    return await _replace(
        engine,
        dict(zip(announced.names, tensors, strict=True)),
        complete=False,
        weight_version=weight_version,
        flush_cache=flush_cache,
        abort_all_requests=abort_all_requests,
    )


async def begin_session(engine: LocalEngine) -> Outcome:
    """Open the session that tensor updates need. Unpaused it waits until the running requests have
    ended, while new ones wait."""
    async with engine.gate.update():
        if engine.update_session_open:
            return False, "a weight-update session is already open; call end_weight_update() first"
        engine.update_session_open = True
        return True, "Success"


async def end_session(engine: LocalEngine) -> Outcome:
    """Close it; unpaused it waits as its beginning does."""
    async with engine.gate.update():
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
    """Digest of the weights in service (`weights.checksum`). Raises UnavailableError: released."""

    def digest(scheduler: Scheduler) -> str:
        model = scheduler.runner.model
        if model.missing or not model.parameters:
            raise UnavailableError("the weights were released: load them first")
        return checksum(model.parameters)

    return await engine.thread.call(digest)


async def release_memory(engine: LocalEngine, tags: list[str] | None) -> None:
    """Give back the memory of these tags; of both without any."""
    wanted = _memory_of(tags)
    await engine.thread.call(lambda scheduler: scheduler.release_memory(**wanted))


async def resume_memory(engine: LocalEngine, tags: list[str] | None) -> None:
    """Take it again."""
    wanted = _memory_of(tags)
    await engine.thread.call(lambda scheduler: scheduler.resume_memory(**wanted))


def _memory_of(tags: list[str] | None) -> dict[str, bool]:
    return {tag: not tags or tag in tags for tag in ("kv_cache", "weights")}


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
