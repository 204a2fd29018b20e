"""Read-only routes: health, model, server, loads, metrics."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from aiohttp import web

from gyre.cell_agent.engine.local.config import ARCHITECTURES
from gyre.cell_agent.engine.local.engine import LocalEngine
from gyre.cell_agent.engine.local.http import ENGINE, json_response
from gyre.cell_agent.engine.local.metrics import render_metrics
from gyre.cell_agent.engine.local.params import parse_generate

HEALTH_TIMEOUT_S = 20.0
"""SGLang's: how long a health check waits for a sign of life before it answers 503."""

ENGINE_NAME = "gyre-local"
VERSION = "0.1.0"


async def health(request: web.Request) -> web.Response:
    """200 when the model thread answers; 503 after 20 s without an answer or of pause."""
    engine = request.app[ENGINE]
    return web.Response(status=200 if await _answers(engine) else 503)


async def health_generate(request: web.Request) -> web.Response:
    """As `/health`, but an idle engine generates one token."""
    engine = request.app[ENGINE]
    if not await _answers(engine):
        return web.Response(status=503)
    if engine.gate.num_inside == 0:
        body = {
            "input_ids": [0],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        }
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                async with engine.generating(parse_generate(body, 1)) as live:
                    await live.progress.wait()
        except TimeoutError:
            return web.Response(status=503)
    return web.Response(status=200 if engine.healthy else 503)


async def ready(request: web.Request) -> web.Response:
    """Whether a request sent now would be served: healthy and not paused."""
    engine = request.app[ENGINE]
    return web.Response(status=200 if engine.healthy and not engine.gate.paused else 503)


async def model_info(request: web.Request) -> web.Response:
    """What is served, and which version of its weights."""
    engine = request.app[ENGINE]
    return json_response(
        {
            "model_path": engine.model_path,
            "served_model_name": engine.model_path,
            "tokenizer_path": str(engine.options.model_path),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": engine.weight_version,
            "load_format": "auto",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": engine.config.model_type,
            "architectures": [ARCHITECTURES[engine.config.model_type]],
        }
    )


async def server_info(request: web.Request) -> web.Response:
    """The settings the server runs under, and its live state."""
    engine = request.app[ENGINE]
    options = asdict(engine.options) | {"model_path": engine.model_path}
    return json_response(
        options
        | {
            "engine": ENGINE_NAME,
            "version": VERSION,
            "max_total_num_tokens": engine.options.max_total_tokens,
            "max_req_input_len": engine.options.context_length - 1,
            "internal_states": [_load(engine)],
        }
    )


async def loads(request: web.Request) -> web.Response:
    """`{"loads": [one entry, for the one data-parallel rank]}`."""
    engine = request.app[ENGINE]
    return json_response(
        {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": VERSION,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": [_load(engine)],
        }
    )


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text."""
    engine = request.app[ENGINE]
    text = render_metrics(engine.scheduler, engine.model_path, time.perf_counter())
    return web.Response(text=text, content_type="text/plain")


async def _answers(engine: LocalEngine) -> bool:
    if not engine.healthy:
        return False
    if engine.gate.paused and not await engine.gate.opened(HEALTH_TIMEOUT_S):
        return False
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await engine.thread.call(lambda _: True)
    except TimeoutError:
        return False


def _load(engine: LocalEngine) -> dict[str, Any]:
    scheduler, options = engine.scheduler, engine.options
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    cached = scheduler.runner.num_cached_tokens
    return {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": len(running),
        "num_waiting_reqs": len(waiting),
        "num_waiting_uncached_tokens": sum(item.num_tokens for item in waiting),
        "num_used_tokens": cached,
        "num_pins": len(scheduler.pins),
        "announced": _announced(engine),
        "num_total_tokens": sum(item.num_tokens for item in running + waiting),
        "num_active_tokens": sum(item.num_tokens for item in running),
        "max_total_num_tokens": options.max_total_tokens,
        "max_running_requests": options.max_running_requests,
        "token_usage": cached / options.max_total_tokens,
        "gen_throughput": scheduler.stats.tokens_per_s(time.perf_counter()),
        "cache_hit_rate": scheduler.stats.cache_hit_rate,
        "utilization": len(running) / options.max_running_requests,
        "queues": {
            "waiting": len(waiting),
            "retracted": sum(item.num_retractions > 0 for item in waiting),
            "paused": int(engine.gate.paused),
        },
    }


def _announced(engine: LocalEngine) -> dict[str, int] | None:
    """The last role switch that pins were announced for; None where none can be."""
    if engine.options.migration_key is None:
        return None
    pins = engine.scheduler.pins
    return {"switch": pins.switch, "num_executions": pins.num_announced}
