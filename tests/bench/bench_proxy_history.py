"""What a long conversation costs the proxy: `python tests/bench/bench_proxy_history.py`.

Clients resend their whole history with each request. Three conversations of 200 turns in each API,
with a tool call each whose result has 2 kB: the proxy process's own time on a processor per call,
by the kernel's count, against the size of the body; the slope of a line through them is what a kB
costs. Its floors beside it: `orjson.loads` of the last body, and the API's own reading of it. New
content is the same in each turn, so what does not grow with the body is in the line's other
parameter. Writes out/bench/proxy_history.json.

The other part is memory: a proxy comes up on a log of 2,000 executions of 100 such turns each and
serves a call of every one, which puts all their trees and what their clients may send back into its
memory. Writes out/bench/proxy_memory.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
import psutil

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.codec import encode, make_envelope
from gyre.contracts.events.calls import CallRecorded, Segment, Span
from gyre.core.tree_nodes import node_id, sampled_node_id
from gyre.proxy.app import APIS
from gyre.proxy.requests import Sampling
from gyre.testkit.benches import write_report
from gyre.testkit.nats_server import NatsServer, free_port
from gyre.testkit.proxy_load import TALKS, Talk, call, cpu_s, proxy_process
from gyre.testkit.proxy_world import JOB, Facts, end_process
from gyre.testkit.tiny_model import make_tiny_tokenizer

NUM_TURNS = 200
# About four characters a token, as a real tokenizer has it.
RESULT = "the quick brown fox jumps over the lazy dog. hello world, user assistant system " * 25
SAY = '<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>'
CONTEXT_TOKENS = 2**20
NUM_TURNS_OPEN = 100
# Conversations of which the middle one counts: a machine that is shared has pauses.
REPEATS = 3
INPUT_TOKENS, OUTPUT_TOKENS = 500, 100
# Appends that are under way at a time.
PIPELINE = 512

HISTORY_TARGETS = {f"{api}_us_per_kB": 5.0 for api in TALKS}
MEMORY_TARGETS = {"memory_MB": 2048.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A log and an engine that says one tool call at once. facts: of its one job."""

    nats: NatsServer
    facts: Facts
    session: aiohttp.ClientSession


async def world(stack: AsyncExitStack, root: Path) -> World:
    model = root / "model"
    make_tiny_tokenizer().save_pretrained(str(model))
    port = free_port()
    command = [sys.executable, "-m", "gyre.testkit.stub_engine", "--port", str(port)]
    command += ["--model", str(model), "--say", SAY, "--token-ms", "0"]
    stack.callback(end_process, subprocess.Popen(command))  # noqa: ASYNC220
    nats = NatsServer(root / "nats").start()
    stack.callback(nats.stop)
    await ensure_streams(nats.url)
    log = JetStreamEventLog(nats.url)
    stack.push_async_callback(log.close)
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model, context_tokens=CONTEXT_TOKENS, max_new_tokens=1024)
    await facts.rollout(0, f"http://127.0.0.1:{port}")
    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
    return World(nats=nats, facts=facts, session=session)


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(slope, value at 0) of the line through the points with the least absolute error that some
    pairs of them span: unmoved by single calls that met a pause."""
    half = len(points) // 2
    slopes = sorted(
        (b[1] - a[1]) / (b[0] - a[0])
        for a, b in zip(points[:half], points[half : 2 * half], strict=True)
    )
    found = slopes[len(slopes) // 2]
    rests = sorted(y - found * x for x, y in points)
    return found, rests[len(rests) // 2]


def floors_us_per_kb(talk: Talk) -> tuple[float, float]:
    """Of the last body: parsing its JSON, and all that its API does to read it; the fastest of
    some."""
    body = talk.body()
    kb = len(body) / 1e3
    sampling = Sampling(temperature=1.0, max_new_tokens=1024)
    api = APIS[talk.path]
    parsed = min(_timed(lambda: orjson.loads(body)) for _ in range(20))
    read = min(_timed(lambda: api.parse(body, {}, sampling)) for _ in range(20))
    return parsed * 1e6 / kb, read * 1e6 / kb


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


async def history(arguments: argparse.Namespace, root: Path) -> None:
    figures: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        here = await world(stack, root)
        url, pid = await stack.enter_async_context(proxy_process(here.nats.url, root))
        for api, kind in TALKS.items():
            lines = []
            for repeat in range(REPEATS):
                key = await here.facts.start(f"job-test-g0-{api}{repeat}")
                talk, points = kind(), []
                for turn in range(arguments.turns + 3):
                    kb, before = len(talk.body()) / 1e3, cpu_s(pid)
                    await call(here.session, url, key, talk, RESULT)
                    if turn >= 3:  # the codec is loaded, code is warm
                        points.append((kb, (cpu_s(pid) - before) * 1e6))
                lines.append(slope(points))
            per_kb, rest_us = sorted(lines)[REPEATS // 2]
            json_floor, parse_floor = floors_us_per_kb(talk)
            figures[f"{api}_us_per_kB"] = round(per_kb, 2)
            figures[f"{api}_us_per_kB_reading"] = round(parse_floor, 2)
            figures[f"{api}_us_per_kB_orjson"] = round(json_floor, 2)
            figures[f"{api}_rest_ms"] = round(rest_us / 1e3, 2)
            figures["last_body_kB"] = round(points[-1][0])
    figures["load_average"] = round(os.getloadavg()[0], 2)
    ok = all(figures[name] <= target for name, target in HISTORY_TARGETS.items())
    write_report("proxy_history", figures, HISTORY_TARGETS, ok=ok)


def recorded_calls(execution: str) -> list[CallRecorded]:
    """The calls of an execution with one tool call and one result a turn."""
    generation, output = tuple(range(20, 23)), tuple(range(100, 100 + OUTPUT_TOKENS))
    result = tuple(range(100, 100 + INPUT_TOKENS))
    parent, found = None, []
    for index in range(NUM_TURNS_OPEN):
        known_by = f"{index:032x}"
        segments = []
        for role, tokens, keys in (("tool", result, (known_by,)), ("generation", generation, ())):
            node = node_id(parent, tokens)
            segments.append(
                Segment(node=node, parent=parent, role=role, token_ids=tokens, known_by=keys)
            )
            parent = node
        call_id = f"{execution}-c{index:05d}"
        sampled = sampled_node_id(parent, call_id, output)
        found.append(
            CallRecorded(
                call=call_id,
                execution=execution,
                attempt=1,
                request_role="main",
                parent=segments[0].parent,
                segments=tuple(segments),
                node=sampled,
                output_ids=output,
                output_logprobs=tuple(-index / 7 for index in range(OUTPUT_TOKENS)),
                spans=(Span(start=0, end=OUTPUT_TOKENS, version=0, lineage=0, cell=0),),
                num_input_tokens=INPUT_TOKENS * (index + 1),
                num_cached_tokens=0,
                temperature=1.0,
                max_new_tokens=1024,
                finish_reason="stop",
                outcome="committed",
                duration_s=1.0,
            )
        )
        parent = sampled
    return found


async def fill(here: World, executions: Sequence[str]) -> None:
    """The log of what the executions have called: one of them is written, the others are like it,
    with names of their own."""
    model, log = executions[0], JetStreamEventLog(here.nats.url)
    pattern = [
        encode(
            make_envelope(
                body,
                identity=f"id-{body.call}",
                job=JOB,
                aggregate=subjects.calls(JOB, model),
                time=0.0,
                causation="",
            )
        )
        for body in recorded_calls(model)
    ]
    for start in range(0, len(executions), PIPELINE // NUM_TURNS_OPEN):
        appends = []
        for name in executions[start : start + PIPELINE // NUM_TURNS_OPEN]:
            subject = subjects.calls(JOB, name)
            for index, event in enumerate(pattern):
                data = event.replace(model.encode(), name.encode())
                appends.append(log.append(subject, data, event_id=f"{name}-{index}", expected=None))
        await asyncio.gather(*appends)
    await log.close()


async def memory(arguments: argparse.Namespace, root: Path) -> None:
    executions = [f"job-test-g0-m{index:05d}" for index in range(arguments.executions)]
    async with AsyncExitStack() as stack:
        here = await world(stack, root)
        keys = [await here.facts.start(name) for name in executions]
        await fill(here, executions)
        start = time.perf_counter()
        url, pid = await stack.enter_async_context(proxy_process(here.nats.url, root))
        started_s = time.perf_counter() - start
        room = asyncio.Semaphore(32)

        async def one(key: str) -> None:
            async with room:
                await call(here.session, url, key, TALKS["chat"](), RESULT)

        await asyncio.gather(*map(one, keys))
        used = psutil.Process(pid).memory_info().rss / 2**20
    figures = {
        "memory_MB": round(used),
        "executions": len(executions),
        "calls_of_each": NUM_TURNS_OPEN,
        "started_s": round(started_s, 1),
        "load_average": round(os.getloadavg()[0], 2),
    }
    write_report("proxy_memory", figures, MEMORY_TARGETS, ok=used <= MEMORY_TARGETS["memory_MB"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=NUM_TURNS)
    parser.add_argument("--executions", type=int, default=2000)
    parser.add_argument("--only", choices=("history", "memory"))
    arguments = parser.parse_args()
    for part, name in ((history, "history"), (memory, "memory")):
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory() as root:
                asyncio.run(part(arguments, Path(root)))


if __name__ == "__main__":
    main()
