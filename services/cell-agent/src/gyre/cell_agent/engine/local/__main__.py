"""`python -m gyre.cell_agent.engine.local`: one engine process.

Two loops: the event loop (HTTP, in this thread) and the model thread (`thread.EngineThread`).
Prints one line `listening on http://HOST:PORT` to stderr when it serves; ends with status 0 on
SIGTERM or SIGINT, 1 when the model thread fails, 2 when the model cannot be loaded or the
address is taken.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import time

import torch
from aiohttp import web

from gyre.cell_agent.engine.local.app import build_app
from gyre.cell_agent.engine.local.config import ModelConfig, read_model_config
from gyre.cell_agent.engine.local.engine import LocalEngine
from gyre.cell_agent.engine.local.errors import LocalEngineError
from gyre.cell_agent.engine.local.model import Transformer
from gyre.cell_agent.engine.local.options import EngineOptions, parse_options
from gyre.cell_agent.engine.local.pace import Pace
from gyre.cell_agent.engine.local.runner import Capacity, ModelRunner
from gyre.cell_agent.engine.local.scheduler import Scheduler
from gyre.cell_agent.engine.local.tokenizer import TextCodec
from gyre.cell_agent.engine.local.weights import check_state, read_checkpoint
from gyre.cell_agent.process_memory import keep_one_heap
from gyre.core.policy_weights import weight_shapes

SWITCH_INTERVAL_S = 0.0005
"""Python's default of 5 ms would let a long JSON answer hold up several decode steps."""

SHUTDOWN_TIMEOUT_S = 2.0

logger = logging.getLogger("gyre.engine.local")


def main() -> int:
    """Load, serve until told to stop; return the exit status."""
    keep_one_heap()
    options = parse_options(sys.argv[1:])
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)
    torch.set_num_threads(options.threads)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        config = read_model_config(options.model_path)
        codec = TextCodec(options.model_path)
        scheduler = build_scheduler(options, config, codec)
    except LocalEngineError as error:
        logger.error("cannot serve: %s", error)  # noqa: TRY400  (one line, no traceback)
        return 2
    return asyncio.run(serve(options, config, codec, scheduler))


def build_scheduler(options: EngineOptions, config: ModelConfig, codec: TextCodec) -> Scheduler:
    """Load the checkpoint and allocate the KV memory."""
    model = Transformer(config.shapes, options.context_length)
    state = read_checkpoint(options.model_path)
    check_state(state, weight_shapes(config.shapes), complete=True)
    model.load(state)
    capacity = Capacity(
        num_slots=options.max_running_requests,
        context_length=options.context_length,
        cache_tokens=options.max_total_tokens,
    )
    speed = options.emulate_decode_tokens_per_s
    return Scheduler(
        runner=ModelRunner(model, capacity),
        codec=codec,
        weight_version=options.weight_version,
        clock=time.perf_counter,
        rng=random.Random(options.random_seed),
        pace=None if speed is None else Pace(speed),
    )


async def serve(
    options: EngineOptions, config: ModelConfig, codec: TextCodec, scheduler: Scheduler
) -> int:
    """Listen until a signal or a failure of the model thread."""
    engine = LocalEngine(options=options, config=config, codec=codec, scheduler=scheduler)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, engine.stopped.set)
    runner = web.AppRunner(
        build_app(engine),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            logger.error("cannot listen: %s", error)  # noqa: TRY400  (one line, no traceback)
            return 2
        host, port = runner.addresses[0][:2]
        logger.info("listening on http://%s:%s", host, port)
        await engine.stopped.wait()
    finally:
        await runner.cleanup()
    if engine.failure is not None:
        logger.error("the model thread failed: %r", engine.failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
