"""Control routes: abort, pause, cache, weights, memory."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from gyre.cell_agent.engine.local import updates
from gyre.cell_agent.engine.local.errors import BadRequestError, SchemaError
from gyre.cell_agent.engine.local.http import ENGINE, field, json_response, read_body, read_seconds
from gyre.cell_agent.engine.update_group import BACKEND, Place

PAUSE_MODES = ("abort", "retract", "in_place")
DEFAULT_GROUP = "weight_update_group"
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


async def abort_request(request: web.Request) -> web.Response:
    """`{"rid"}` or `{"abort_all": true}`: always 200 and empty. `pin_s` pins for so many seconds
    what the aborted requests have in the cache; SGLang takes no notice of it."""
    body = await read_body(request)
    await request.app[ENGINE].abort(
        field(body, "rid", str, ""),
        all_requests=field(body, "abort_all", bool, False),
        pin_s=read_seconds(body, "pin_s", None),
    )
    return web.Response()


async def pause_generation(request: web.Request) -> web.Response:
    """`{"mode": "abort" | "in_place" | "retract"}`; the body is required."""
    mode = field(await read_body(request), "mode", str, "abort")
    if mode not in PAUSE_MODES:
        raise SchemaError(f"mode must be one of {', '.join(PAUSE_MODES)}, got {mode!r}")
    await request.app[ENGINE].pause(mode)
    return json_response({"message": "Generation paused successfully.", "status": "ok"})


async def continue_generation(request: web.Request) -> web.Response:
    """`{}`; the body is required."""
    await read_body(request)
    await request.app[ENGINE].resume()
    return json_response({"message": "Generation continued successfully.", "status": "ok"})


async def flush_cache(request: web.Request) -> web.Response:
    """Query `timeout` in seconds (0): how long to wait for running requests."""
    raw = request.query.get("timeout", "0")
    try:
        timeout_s = float(raw)
    except ValueError as error:
        raise SchemaError(f"timeout must be a number of seconds, got {raw!r}") from error
    if timeout_s < 0:
        raise SchemaError(f"timeout must be at least 0, got {timeout_s}")
    flushed = await updates.flush(request.app[ENGINE], timeout_s)
    text = FLUSHED if flushed else "Flush cache failed.\n"
    return web.Response(text=text, status=200 if flushed else 400)


async def update_weights_from_disk(request: web.Request) -> web.Response:
    """`{model_path, weight_version?, flush_cache=true, abort_all_requests=false}`."""
    body = await read_body(request)
    success, message = await updates.update_from_disk(
        request.app[ENGINE], field(body, "model_path", str), **_update_options(body)
    )
    answer = {"success": success, "message": message, "num_paused_requests": 0}
    return json_response(answer, 200 if success else 400)


async def update_weights_from_tensor(request: web.Request) -> web.Response:
    """`{serialized_named_tensors: [base64 safetensors], ...}`; see `updates`."""
    body = await read_body(request)
    payloads = field(body, "serialized_named_tensors", list)
    if not all(isinstance(item, str) for item in payloads):
        raise SchemaError("serialized_named_tensors must be a list of base64 strings")
    return _outcome(
        await updates.update_from_tensors(request.app[ENGINE], payloads, **_update_options(body))
    )


async def begin_weight_update(request: web.Request) -> web.Response:
    """Mandatory before a tensor update."""
    await read_body(request)
    return _outcome(await updates.begin_session(request.app[ENGINE]))


async def end_weight_update(request: web.Request) -> web.Response:
    """Mandatory after it."""
    await read_body(request)
    return _outcome(await updates.end_session(request.app[ENGINE]))


async def init_weights_update_group(request: web.Request) -> web.Response:
    """`{master_address, master_port, rank_offset, world_size, group_name?, backend}`: this engine
    is the rank `rank_offset` of a gloo group whose rank 0 hosts the store."""
    body = await read_body(request)
    if field(body, "backend", str, "nccl") != BACKEND:
        raise BadRequestError(f"the local engine's groups are of backend {BACKEND}")
    place = Place(
        host=field(body, "master_address", str),
        port=field(body, "master_port", int),
        own_host=request.app[ENGINE].options.host,
        rank=field(body, "rank_offset", int),
        size=field(body, "world_size", int),
        name=field(body, "group_name", str, DEFAULT_GROUP),
    )
    return _outcome(await updates.join_group(request.app[ENGINE], place))


async def destroy_weights_update_group(request: web.Request) -> web.Response:
    """`{group_name?}`."""
    name = field(await read_body(request), "group_name", str, DEFAULT_GROUP)
    return _outcome(updates.leave_group(request.app[ENGINE], name))


async def update_weights_from_distributed(request: web.Request) -> web.Response:
    """`{names, dtypes, shapes, group_name?, ...}`: parameters that the group's rank 0 sends."""
    body = await read_body(request)
    announced = updates.Announced(
        group=field(body, "group_name", str, DEFAULT_GROUP),
        names=field(body, "names", list),
        dtypes=field(body, "dtypes", list),
        shapes=field(body, "shapes", list),
    )
    return _outcome(
        await updates.update_from_group(request.app[ENGINE], announced, **_update_options(body))
    )


async def update_weight_version(request: web.Request) -> web.Response:
    """`{new_version, abort_all_requests=true}`."""
    body = await read_body(request)
    version = field(body, "new_version", str)
    abort_all = field(body, "abort_all_requests", bool, True)
    await updates.set_version(request.app[ENGINE], version, abort_all_requests=abort_all)
    return json_response(
        {
            "success": True,
            "message": f"Weight version updated to {version}",
            "new_version": version,
        }
    )


async def weights_checker(request: web.Request) -> web.Response:
    """`{"action": "checksum"}`: `per_engine_checksum` is the digest of the served weights."""
    action = field(await read_body(request, optional=True), "action", str, "checksum")
    if action != "checksum":
        raise BadRequestError(f"action {action!r} is not supported by the local engine")
    digest = await updates.weights_checksum(request.app[ENGINE])
    return json_response({"success": True, "message": "Success.", "per_engine_checksum": digest})


async def release_memory_occupation(request: web.Request) -> web.Response:
    """`{"tags": ["weights", "kv_cache"]}`, default both."""
    tags = field(await read_body(request, optional=True), "tags", list, None)
    await updates.release_memory(request.app[ENGINE], tags)
    return json_response(None)


async def resume_memory_occupation(request: web.Request) -> web.Response:
    """`{"tags": ["weights", "kv_cache"]}`, default both."""
    tags = field(await read_body(request, optional=True), "tags", list, None)
    await updates.resume_memory(request.app[ENGINE], tags)
    return json_response(None)


def _update_options(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "weight_version": field(body, "weight_version", str, None),
        "flush_cache": field(body, "flush_cache", bool, True),
        "abort_all_requests": field(body, "abort_all_requests", bool, False),
    }


def _outcome(outcome: updates.Outcome) -> web.Response:
    success, message = outcome
    return json_response({"success": success, "message": message}, 200 if success else 400)
