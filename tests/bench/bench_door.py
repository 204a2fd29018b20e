"""What an attempt's door adds to a call: `python tests/bench/bench_door.py [--calls N]`.

One client asks a stub of the proxy, short calls one after the other, directly and through a door
that a real keeper serves, by turns, so that both meet the same machine; on connections that it
keeps, and on a new one for each call. Added time = difference of the percentiles. The stub answers
at once, from a process of its own. Writes out/bench/door.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from gyre.runner import keeper as keepers
from gyre.runner.keeper import Keeper, LaunchRequest
from gyre.runner.proxies import Proxies
from gyre.testkit.benches import write_report
from gyre.testkit.nats_server import free_port

TARGETS = {"door_added_p50_ms": 0.2}
ROUNDS = 20
REQUEST = b"POST /v1 HTTP/1.1\r\nHost: p\r\nContent-Length: 4000\r\n\r\n" + b"x" * 4000
ANSWER_BYTES = 2000
STUB = f"""
import asyncio, sys

async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            if head.startswith(b"POST"):
                await reader.readexactly(4000)
            body = b"y" * {ANSWER_BYTES}
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: {ANSWER_BYTES}\\r\\n\\r\\n" + body)
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def stub() -> Iterator[int]:
    """Its port, while it runs."""
    port = free_port()
    command = [sys.executable, "-c", STUB, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield port
        finally:
            process.kill()


def call(connection: socket.socket) -> None:
    """One short call."""
    connection.sendall(REQUEST)
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(65536)
    left = ANSWER_BYTES - len(head.partition(b"\r\n\r\n")[2])
    while left > 0:
        left -= len(connection.recv(65536))


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def kept_ms(port: int, num_calls: int) -> list[float]:
    """Of calls on one connection."""
    took = []
    with closing(connect(port)) as connection:
        call(connection)
        for _ in range(num_calls):
            began = time.perf_counter()
            call(connection)
            took.append((time.perf_counter() - began) * 1000)
    return took


def reconnected_ms(port: int, num_calls: int) -> list[float]:
    """Of calls on a connection each."""
    took = []
    for _ in range(num_calls):
        began = time.perf_counter()
        with closing(connect(port)) as connection:
            call(connection)
        took.append((time.perf_counter() - began) * 1000)
    return took


def added_ms(direct: list[float], through: list[float], name: str) -> dict[str, float]:
    """Differences of the percentiles."""
    cuts = [statistics.quantiles(each, n=100) for each in (direct, through)]
    return {
        f"{name}_direct_p50_ms": cuts[0][49],
        f"{name}_added_p50_ms": cuts[1][49] - cuts[0][49],
        f"{name}_added_p99_ms": cuts[1][98] - cuts[0][98],
    }


def measure(direct: int, through: int, num_calls: int) -> dict[str, float]:
    """Figures of both kinds of clients, over ports of the stub and of its door."""
    figures: dict[str, float] = {}
    for name, timed in (("door", kept_ms), ("reconnecting", reconnected_ms)):
        took: dict[int, list[float]] = {direct: [], through: []}
        for _ in range(ROUNDS):
            for port, times in took.items():
                times += timed(port, num_calls // ROUNDS)
        figures |= added_ms(took[direct], took[through], name)
    return figures


async def bench(root: Path, num_calls: int) -> dict[str, float]:
    keeper = Keeper(python=Path(sys.executable), warm=None, state_dir=root, log=root / "log")
    with stub() as port:
        urls = (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}")
        with Proxies(urls=urls).door("execution", root / "proxy") as door:
            assert door is not None
            request = LaunchRequest(
                argv=("sleep", "1000"),
                env={"PATH": "/usr/bin:/bin"},
                cwd=root,
                stdout=root / "stdout",
                stderr=root / "stderr",
                status=root / "status",
                door=door,
            )
            handle = await keeper.launch(request)
            own = door.listener.getsockname()[1]
        try:
            figures = await asyncio.to_thread(measure, port, own, num_calls)
            keeper_pid = json.loads((root / "status").read_text())["keeper_pid"]
            memory = psutil.Process(keeper_pid).memory_full_info()
            return figures | {"keeper_own_mb": memory.uss / 1e6}
        finally:
            await keepers.kill_group(handle, 0)
            await keeper.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="of each kind, each way")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        figures = asyncio.run(bench(Path(root), arguments.calls))
    ok = all(figures[name] <= target for name, target in TARGETS.items())
    write_report("door", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
