"""The HTTP application: every route of the contract in one table."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from gyre.cell_agent.engine.local import routes_cache as cache
from gyre.cell_agent.engine.local import routes_control as control
from gyre.cell_agent.engine.local import routes_info as info
from gyre.cell_agent.engine.local.engine import LocalEngine
from gyre.cell_agent.engine.local.http import ENGINE, Handler, answer_errors
from gyre.cell_agent.engine.local.routes_generate import generate

MAX_BODY_BYTES = 2**30
"""Tensor updates carry whole models; the engine listens to its own agent only."""

STOP_TIMEOUT_S = 5.0

GET, POST, PUT = "GET", "POST", "PUT"
ROUTES: tuple[tuple[str, Handler, tuple[str, ...]], ...] = (
    ("/generate", generate, (POST, PUT)),
    ("/abort_request", control.abort_request, (POST,)),
    ("/pause_generation", control.pause_generation, (POST,)),
    ("/continue_generation", control.continue_generation, (POST,)),
    ("/flush_cache", control.flush_cache, (GET, POST)),
    ("/update_weights_from_disk", control.update_weights_from_disk, (POST,)),
    ("/update_weights_from_tensor", control.update_weights_from_tensor, (POST,)),
    ("/init_weights_update_group", control.init_weights_update_group, (POST,)),
    ("/update_weights_from_distributed", control.update_weights_from_distributed, (POST,)),
    ("/destroy_weights_update_group", control.destroy_weights_update_group, (POST,)),
    ("/begin_weight_update", control.begin_weight_update, (POST,)),
    ("/end_weight_update", control.end_weight_update, (POST,)),
    ("/update_weight_version", control.update_weight_version, (POST,)),
    ("/weights_checker", control.weights_checker, (GET, POST)),
    ("/release_memory_occupation", control.release_memory_occupation, (GET, POST)),
    ("/resume_memory_occupation", control.resume_memory_occupation, (GET, POST)),
    ("/announce_pins", cache.announce_pins, (POST,)),
    ("/pin_cache", cache.pin_cache, (POST,)),
    ("/unpin_cache", cache.unpin_cache, (POST,)),
    ("/cache_blocks", cache.cache_blocks, (POST,)),
    ("/pull_cache", cache.pull_cache, (POST,)),
    ("/health", info.health, (GET,)),
    ("/health_generate", info.health_generate, (GET,)),
    ("/ready", info.ready, (GET,)),
    ("/model_info", info.model_info, (GET,)),
    ("/server_info", info.server_info, (GET,)),
    ("/v1/loads", info.loads, (GET,)),
    ("/metrics", info.metrics, (GET,)),
)


def build_app(engine: LocalEngine) -> web.Application:
    """The application; it starts the model thread and stops it at the end."""
    app = web.Application(middlewares=[answer_errors], client_max_size=MAX_BODY_BYTES)
    app[ENGINE] = engine
    for path, handler, methods in ROUTES:
        for method in methods:
            app.router.add_route(method, path, handler)
    app.cleanup_ctx.append(_run_model_thread)
    return app


async def _run_model_thread(app: web.Application) -> AsyncIterator[None]:
    engine = app[ENGINE]
    engine.thread.start()
    yield
    engine.thread.stop(STOP_TIMEOUT_S)
