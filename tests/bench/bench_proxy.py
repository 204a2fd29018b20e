"""What the proxy adds to a call's completion: `python tests/bench/bench_proxy.py [--no-peer]`.

64 clients, each with its own conversation, make short calls one after the other: straight to the
engine, through the proxy in each of its three APIs, and through the peer, `verifiers`' interception
server with its training client, over the engine's endpoint that it asks. The proxy runs twice: as
it comes, and with GYRE_PROXY_BUSY_POLL, which is what the targets of added time are for. They take
turns, round by round, so that all meet the same machine. Clients in this process, all else in
processes of their own; the engine is a stub that answers on a timer. Added time = difference of the
percentiles.

Meanwhile the proxy is asked for its health, every 50 ms from the first call on, and the engine too,
which has next to nothing to do: what that one takes is the machine's. On a machine that is shared,
time on a processor, by the kernel's count, holds best. Writes out/bench/proxy.json, and
out/bench/proxy_peer.json, which has no targets.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.testkit.benches import write_report
from gyre.testkit.nats_server import NatsServer, free_port
from gyre.testkit.proxy_load import TALKS, Talk, call, cpu_s, proxy_process
from gyre.testkit.proxy_world import Facts, end_process
from gyre.testkit.tiny_model import make_tiny_tokenizer

ROOT = Path(__file__).resolve().parent.parent.parent
CONTEXT_TOKENS = 131072
SAY = "the quick brown fox jumps over the lazy dog"
HEALTH_PERIOD_S = 0.05
# Clients that start together stay together, and measure their own queue.
SPREAD_S = 0.5

# Of the two proxies, the one that keeps a processor while calls are open.
POLLING = "_polling"

TARGETS = {
    **{f"{api}{POLLING}_added_p50_ms": 2.0 for api in TALKS},
    **{f"{api}{kind}_added_p99_ms": 10.0 for api in TALKS for kind in ("", POLLING)},
    "health_p99_ms": 50.0,
}

Client = Callable[[aiohttp.ClientSession, int], Coroutine[None, None, float]]


def direct(url: str, *, stream: bool) -> Client:
    """Calls of the engine itself, as the proxy (stream) and as the peer make them."""

    async def one(session: aiohttp.ClientSession, index: int) -> float:
        ids = [random.Random(index).randrange(20, 300) for _ in range(400)]
        body: dict[str, Any] = {"rid": "0" * 32, "input_ids": ids, "stream": True}
        path = "/generate"
        if not stream:
            body, path = {"model": "policy", "token_ids": ids}, "/inference/v1/generate"
        start = time.perf_counter()
        async with session.post(url + path, data=orjson.dumps(body)) as response:
            async for _ in response.content.iter_any():
                pass
        assert response.status == 200
        return time.perf_counter() - start

    return one


def through(url: str, keys: Sequence[str], talks: Sequence[Talk]) -> Client:
    """Calls of conversations that go on from round to round."""

    async def one(session: aiohttp.ClientSession, index: int) -> float:
        return await call(session, url, keys[index], talks[index], "and the next one")

    return one


async def phase(
    session: aiohttp.ClientSession, client: Client, num_clients: int, num_calls: int
) -> list[float]:
    """Seconds of every client's calls but its first, which opens its connection."""

    async def one(index: int) -> list[float]:
        await asyncio.sleep(random.Random(index).uniform(0, SPREAD_S))
        return [await client(session, index) for _ in range(num_calls + 1)][1:]

    return [s for one in await asyncio.gather(*map(one, range(num_clients))) for s in one]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"p50_ms": round(cuts[49] * 1e3, 2), "p99_ms": round(cuts[98] * 1e3, 2)}


@asynccontextmanager
async def peer_process(model: Path, engine: str, num: int) -> AsyncIterator[tuple[Client, int]]:
    """The peer, over its environment in the cache, which is made if it is not there."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from setup import REQUIREMENTS, cache_directory, cached_environment

    requirements = REQUIREMENTS / "bench-verifiers.txt"
    environment = cached_environment(cache_directory(), "bench-verifiers", [requirements])
    command = [str(environment / "bin" / "python"), str(ROOT / "tests/bench/verifiers_peer.py")]
    command += ["--model", str(model), "--engine", engine, "--executions", str(num)]
    process = subprocess.Popen(  # noqa: ASYNC220
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        said = orjson.loads(await asyncio.to_thread(process.stdout.readline))
        talks = [TALKS["chat"]() for _ in range(num)]
        yield through(said["url"], said["keys"], talks), process.pid
    finally:
        end_process(process)


async def watch_health(session: aiohttp.ClientSession, url: str, seconds: list[float]) -> None:
    """Asks for ever."""
    while True:
        start = time.perf_counter()
        async with session.get(url) as response:
            await response.read()
        seconds.append(time.perf_counter() - start)
        assert response.status == 200
        await asyncio.sleep(HEALTH_PERIOD_S)


async def bench(arguments: argparse.Namespace, root: Path) -> None:
    model = root / "model"
    make_tiny_tokenizer().save_pretrained(str(model))
    num = arguments.clients
    async with AsyncExitStack() as stack:
        engine = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "gyre.testkit.stub_engine", "--port", str(port)]
        command += ["--model", str(model), "--say", SAY, "--token-ms", str(arguments.token_ms)]
        stack.callback(end_process, subprocess.Popen(command))  # noqa: ASYNC220
        nats = NatsServer(root / "nats").start()
        stack.callback(nats.stop)
        await ensure_streams(nats.url)
        log = JetStreamEventLog(nats.url)
        stack.push_async_callback(log.close)
        facts = Facts(Journal(log, SystemClock()))
        await facts.submit(model, context_tokens=CONTEXT_TOKENS, max_new_tokens=1024)
        await facts.rollout(0, engine)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        clients = {"engine": direct(engine, stream=True)}
        pids: dict[str, int] = {}
        for kind in ("", POLLING):
            url, pid = await stack.enter_async_context(
                proxy_process(nats.url, root / f"home{kind}", busy_poll=bool(kind))
            )
            for api, talk in TALKS.items():
                name = api + kind
                keys = [await facts.start(f"job-test-g0-{name}{index}") for index in range(num)]
                clients[name] = through(url, keys, [talk() for _ in range(num)])
                pids[name] = pid
        if arguments.peer:
            peer, pids["peer"] = await stack.enter_async_context(peer_process(model, engine, num))
            clients |= {"peer_engine": direct(engine, stream=False), "peer": peer}
        health: dict[str, list[float]] = {"health": [], "engine_health": []}
        watching = [
            asyncio.create_task(watch_health(session, f"{url}/healthz", health["health"])),
            asyncio.create_task(watch_health(session, f"{engine}/health", health["engine_health"])),
        ]
        seconds, cpu = await rounds(session, clients, pids, arguments)
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)
        report(arguments, seconds, cpu, health)


async def rounds(
    session: aiohttp.ClientSession,
    clients: Mapping[str, Client],
    pids: Mapping[str, int],
    arguments: argparse.Namespace,
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of the calls to each, and milliseconds of its process a call. The first round, which
    warms everything, counts for nothing."""
    seconds: dict[str, list[float]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)
    await asyncio.gather(*(phase(session, client, 2, 1) for client in clients.values()))
    for _ in range(arguments.rounds):
        for name, client in clients.items():
            before = cpu_s(pids[name]) if name in pids else 0.0
            seconds[name] += await phase(session, client, arguments.clients, arguments.calls)
            if name in pids:
                spent[name] += cpu_s(pids[name]) - before
    num_calls = arguments.rounds * arguments.clients * (arguments.calls + 1)
    return seconds, {name: round(total / num_calls * 1e3, 3) for name, total in spent.items()}


def report(
    arguments: argparse.Namespace,
    seconds: Mapping[str, Sequence[float]],
    cpu: Mapping[str, float],
    health: Mapping[str, Sequence[float]],
) -> None:
    found = {name: percentiles(values) for name, values in seconds.items()}
    figures: dict[str, float] = {}
    for api in (api + kind for kind in ("", POLLING) for api in TALKS):
        for name in ("p50_ms", "p99_ms"):
            figures[f"{api}_added_{name}"] = round(found[api][name] - found["engine"][name], 2)
        figures[f"{api}_cpu_ms_per_call"] = cpu[api]
    for name, waited in health.items():
        figures[f"{name}_p99_ms"] = percentiles(waited)["p99_ms"]
        figures[f"{name}_max_ms"] = round(max(waited) * 1e3, 2)
    figures["clients"] = arguments.clients
    figures["load_average"] = round(os.getloadavg()[0], 2)
    ok = all(figures[name] <= target for name, target in TARGETS.items())
    write_report("proxy", figures, TARGETS, ok=ok)
    if arguments.peer:
        added = {
            f"chat_added_{name}": round(found["peer"][name] - found["peer_engine"][name], 2)
            for name in ("p50_ms", "p99_ms")
        }
        peer = added | {"chat_cpu_ms_per_call": cpu["peer"]}
        write_report("proxy_peer", peer, {}, ok=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--token-ms", type=float, default=50.0)
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        uvloop.run(bench(arguments, Path(root)))


if __name__ == "__main__":
    main()
