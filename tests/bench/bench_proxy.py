"""What the proxy adds to a call's completion: `python tests/bench/bench_proxy.py [--engine local]`.

Clients in this process, the engine, nats-server and the proxy in processes of their own. Each
client makes turns of a conversation, one after the other; the same prompts go to the engine
directly, at the same concurrency, in the same run. Added time = difference of the percentiles.

engine stub: answers with `--tokens` tokens at `--token-ms` each, so that what is measured is the
proxy and not the fight for two cores. engine local: the CPU engine, all of it.
Writes out/bench/proxy.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
from aiohttp import web

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.testkit.benches import write_report
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.proxy_world import SECRET, TOOLS, Facts, end_process, free_port, local_engine
from gyre.testkit.tiny_model import make_tiny_model

PROMPT_TOKENS = 400

TARGETS_MS = {"added_p50_ms": 2.0, "added_p99_ms": 10.0}


def stub_engine(port: int, num_tokens: int, token_s: float) -> None:
    """SGLang's streaming shape, tokens on a timer. Blocks."""
    spans = [{"version": "0.0", "start": 0, "end": num_tokens}]

    async def generate(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        rng = random.Random(body["rid"])
        ids = [rng.randrange(300, 500) for _ in range(num_tokens)]
        start = asyncio.get_running_loop().time()
        for count in range(1, num_tokens + 1):
            await asyncio.sleep(max(0.0, start + count * token_s - start_now()))
            meta: dict[str, Any] = {
                "id": body["rid"],
                "weight_version": "0.0",
                "cached_tokens": 0,
                "finish_reason": None,
                "output_token_logprobs": [[-1.5, token, None] for token in ids[:count]],
            }
            if count == num_tokens:
                meta["finish_reason"] = {"type": "length", "length": count}
                meta["weight_versions"] = spans
            event = {"text": "", "output_ids": ids[:count], "meta_info": meta}
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def start_now() -> float:
        return asyncio.get_running_loop().time()

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/generate", generate)
    app.router.add_get("/health", health)
    web.run_app(app, port=port, host="127.0.0.1", print=None, access_log=None)


async def direct_calls(
    session: aiohttp.ClientSession, url: str, num_calls: int, num_tokens: int, spread_s: float
) -> list[float]:
    """Seconds of each call, straight to the engine."""
    seconds = []
    await asyncio.sleep(spread_s)
    rng = random.Random(num_calls)
    for index in range(num_calls):
        body = {
            "rid": f"{rng.getrandbits(128):032x}",
            "input_ids": [rng.randrange(20, 400) for _ in range(PROMPT_TOKENS + 60 * index)],
            "stream": True,
            "return_logprob": True,
            "sampling_params": {"max_new_tokens": num_tokens, "temperature": 1.0},
        }
        start = time.perf_counter()
        async with session.post(f"{url}/generate", data=orjson.dumps(body)) as response:
            async for _ in response.content.iter_any():
                pass
        seconds.append(time.perf_counter() - start)
    return seconds


async def proxied_calls(
    session: aiohttp.ClientSession, url: str, key: str, num_calls: int, spread_s: float
) -> list[float]:
    """Seconds of each call of one conversation, through the proxy."""
    seconds = []
    messages: list[dict[str, Any]] = []
    await asyncio.sleep(spread_s)
    for turn in range(num_calls):
        messages.append({"role": "user", "content": f"turn {turn}: write the value {turn}"})
        body = orjson.dumps({"model": "policy", "messages": messages, "tools": TOOLS})
        start = time.perf_counter()
        async with session.post(
            f"{url}/v1/chat/completions", data=body, headers={"Authorization": f"Bearer {key}"}
        ) as response:
            answer = orjson.loads(await response.read())
        seconds.append(time.perf_counter() - start)
        assert response.status == 200, answer
        message = answer["choices"][0]["message"]
        messages.append({"role": "assistant", "content": message["content"]})
    return seconds


def percentiles(calls: list[list[float]]) -> dict[str, float]:
    """p50 and p99 in milliseconds, without each client's first call."""
    values = sorted(second for client in calls for second in client[1:])
    cuts = statistics.quantiles(values, n=100)
    return {"p50_ms": round(cuts[49] * 1e3, 3), "p99_ms": round(cuts[98] * 1e3, 3)}


@asynccontextmanager
async def proxy_process(nats: NatsServer, home: Path) -> AsyncIterator[tuple[str, int]]:
    """(url, process id) of a proxy that is ready."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        environment = os.environ | {
            "GYRE_NATS_URL": nats.url,
            "GYRE_DATABASE_URL": "postgresql://unused",
            "GYRE_HOME": str(home),
            "GYRE_KEY_SECRET": SECRET,
            "GYRE_PROXY_LISTEN_FD": str(listener.fileno()),
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-m", "gyre.proxy"], env=environment, pass_fds=[listener.fileno()]
        )
        try:
            ready = home / "run" / "proxy.ready"
            deadline = time.monotonic() + 60
            while not ready.exists() and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", process.pid
        finally:
            end_process(process)


async def bench(arguments: argparse.Namespace, root: Path) -> dict[str, Any]:
    model = make_tiny_model(root / "model", seed=0)
    with ExitStack() as stack:
        if arguments.engine == "stub":
            port = free_port()
            command = [sys.executable, __file__, "--serve-stub", str(port)]
            command += ["--tokens", str(arguments.tokens), "--token-ms", str(arguments.token_ms)]
            stack.callback(end_process, subprocess.Popen(command))  # noqa: ASYNC220
            url = f"http://127.0.0.1:{port}"
            await asyncio.sleep(1.5)
        else:
            extra = ("--max-running-requests", str(arguments.clients))
            url = stack.enter_context(local_engine(model, root / "engine.log", *extra)).url
        nats = NatsServer(root / "nats").start()
        stack.callback(nats.stop)
        await ensure_streams(nats.url)
        log = JetStreamEventLog(nats.url)
        facts = Facts(Journal(log, SystemClock()))
        await facts.submit(model, max_new_tokens=arguments.tokens)
        await facts.rollout(0, url)
        keys = [await facts.start(f"job-test-g0-e{index}") for index in range(arguments.clients)]
        # Clients that start together stay together, and measure their own queue.
        spreads = [random.Random(i).uniform(0, 1) for i in range(arguments.clients)]
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            proxy_process(nats, root) as (proxy_url, pid),
        ):
            await asyncio.gather(
                *(proxied_calls(session, proxy_url, key, 2, 0.0) for key in keys[:4])
            )
            direct = await asyncio.gather(
                *(
                    direct_calls(session, url, arguments.calls, arguments.tokens, spread)
                    for spread in spreads
                )
            )
            before, start = psutil.Process(pid).cpu_times(), time.perf_counter()
            proxied = await asyncio.gather(
                *(
                    proxied_calls(session, proxy_url, key, arguments.calls, spread)
                    for key, spread in zip(keys, spreads, strict=True)
                )
            )
            after, seconds = psutil.Process(pid).cpu_times(), time.perf_counter() - start
        await log.close()
    num_calls = len(keys) * arguments.calls
    cpu = after.user + after.system - before.user - before.system
    alone, through = percentiles(direct), percentiles(proxied)
    return {
        "engine": arguments.engine,
        "clients": arguments.clients,
        "calls": num_calls,
        "output_tokens": arguments.tokens,
        "calls_per_s": round(num_calls / seconds, 1),
        "proxy_cpu_ms_per_call": round(cpu / num_calls * 1e3, 3),
        "engine_alone": alone,
        "through_proxy": through,
        "added": {name: round(through[name] - alone[name], 3) for name in alone},
        "load_average": round(os.getloadavg()[0], 2),
    }


def report(result: dict[str, Any]) -> None:
    """The target is for short calls over the engine alone."""
    figures = {
        "added_p50_ms": result["added"]["p50_ms"],
        "added_p99_ms": result["added"]["p99_ms"],
        **{
            name: result[name]
            for name in ("clients", "calls_per_s", "proxy_cpu_ms_per_call", "load_average")
        },
    }
    ok = all(figures[name] <= target for name, target in TARGETS_MS.items())
    name = "proxy" if result["engine"] == "stub" else f"proxy_{result['engine']}"
    write_report(name, figures, TARGETS_MS, ok=ok)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=("stub", "local"), default="stub")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--token-ms", type=float, default=50.0)
    parser.add_argument("--serve-stub", type=int)
    arguments = parser.parse_args()
    if arguments.serve_stub:
        stub_engine(arguments.serve_stub, arguments.tokens, arguments.token_ms / 1e3)
        return
    with tempfile.TemporaryDirectory() as root:
        report(asyncio.run(bench(arguments, Path(root))))


if __name__ == "__main__":
    main()
