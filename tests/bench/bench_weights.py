"""How fast a satellite has the core's weights, and what the core notices of it.

    python tests/bench/bench_weights.py    # writes out/bench/weights.json

Two processes, loopback, 256 MB. Pulls (both sides prove the key, every chunk is verified) take
turns with what the same transport moves raw: one socket, or one read of Mooncake, into memory as
fresh as a pull's, without a digest. The best of the rounds of each are compared, since what else
runs on the machine only takes away. Beside it the core: how long it is kept by an exposure, and its
micro-step (a matrix product of its own thread) alone and while another process pulls. That process
yields to it: it would sit on another machine.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from typing import Any

import torch

from gyre.cell_agent.weights.base import Transport, WeightSource
from gyre.cell_agent.weights.errors import TransportMissing
from gyre.cell_agent.weights.manifest import CHUNK_BYTES
from gyre.cell_agent.weights.mooncake import MooncakeWeightSource
from gyre.cell_agent.weights.payload import Payload
from gyre.cell_agent.weights.transports import open_sink, open_source
from gyre.testkit.benches import write_report

HOST, KEY = "127.0.0.1", "of the bench"
NUM_BYTES = 256 * 1024 * 1024
ROUNDS = 10
STEPS = 40
# The rest of a ratio is another process on the same two processors.
TARGETS = {"tcp_share_of_raw": 0.8, "mooncake_share_of_raw": 0.8, "step_with_a_pull": 1.25}


def weights() -> dict[str, torch.Tensor]:
    parts = 16
    return {
        f"layer.{part}": torch.randn(NUM_BYTES // 4 // parts // 1024, 1024) for part in range(parts)
    }


def expose(source: WeightSource, held: dict[str, torch.Tensor], version: int) -> float:
    """Seconds that the core's thread is kept."""
    started = time.perf_counter()
    payload = Payload({name: tensor.shape for name, tensor in held.items()}, torch.float32)
    buffer = source.buffer(payload.num_bytes)
    payload.begin(buffer.view)
    for name, tensor in held.items():
        payload.put(buffer.view, name, tensor)
    source.expose(buffer, version=version, lineage=1)
    return time.perf_counter() - started


@contextmanager
def raw_sender(payload: memoryview) -> Iterator[int]:
    """A port where whoever connects is sent the payload, as often as it asks by a byte."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(1):
                    for start in range(0, len(payload), CHUNK_BYTES):
                        connection.sendall(payload[start : start + CHUNK_BYTES])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]


def puller(task: str, *arguments: str, nice: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), task, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.nice(nice)
    )


def answer_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=120)
    if process.returncode != 0:
        raise RuntimeError(f"a puller ended with {process.returncode}")
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    return told


def compared(transport: Transport) -> dict[str, float]:
    """GB/s raw and pulled; the last thing a run of each transport says."""
    source = open_source(transport, HOST, key=KEY, allow_public=True)
    expose(source, weights(), 1)
    source.manifest()
    raw = source.buffer(NUM_BYTES)
    raw.view[:] = os.urandom(CHUNK_BYTES) * (NUM_BYTES // CHUNK_BYTES)
    place = ""
    if isinstance(source, MooncakeWeightSource):
        place = json.dumps(source.place(raw))
    with raw_sender(raw.view) as port:
        told = answer_of(puller("compare", transport, str(source.address[1]), str(port), place))
    source.close()
    best_raw, best_pull = max(told["raw"]), max(told["pull"])
    return {
        f"{transport}_raw_gb_s": best_raw,
        f"{transport}_pull_gb_s": best_pull,
        f"{transport}_share_of_raw": best_pull / best_raw,
    }


def noticed() -> dict[str, float]:
    """What the core notices of an exposure, and of a satellite that pulls while it trains."""
    source = open_source("tcp", HOST, key=KEY)
    held = weights()
    kept = [expose(source, held, version) for version in (1, 2, 3)]
    started = time.perf_counter()
    source.manifest()
    digests_s = time.perf_counter() - started
    alone = steps()
    pulling = puller("pull", str(source.address[1]), nice=19)
    assert pulling.stdout is not None
    pulling.stdout.readline()
    beside = steps()
    pulling.kill()
    pulling.communicate()
    source.close()
    return {
        "expose_first_s": kept[0],
        "expose_again_s": kept[-1],
        "digests_behind_it_s": digests_s,
        "step_alone_s": alone,
        "step_beside_a_pull_s": beside,
        "step_with_a_pull": beside / alone,
    }


def steps() -> float:
    """Median seconds of a micro-step."""
    left, right = torch.randn(1200, 1200), torch.randn(1200, 1200)
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def compare(transport: Transport, port: int, raw_port: int, place: str) -> dict[str, list[float]]:
    """In the pulling process."""
    sink = open_sink(transport, HOST, key=KEY, allow_public=True)
    raw = raw_read(sink, json.loads(place)) if place else raw_receive(raw_port)
    found: dict[str, list[float]] = {"raw": [], "pull": []}
    for _ in range(ROUNDS):
        found["raw"].append(gb_s(raw))
        found["pull"].append(gb_s(lambda: sink.pull(HOST, port, version=1, lineage=1)))
    return found


def raw_receive(port: int) -> Callable[[], object]:
    connection = socket.create_connection((HOST, port))

    def receive() -> None:
        into = memoryview(mmap(-1, NUM_BYTES))
        connection.sendall(b"g")
        filled = 0
        while filled < NUM_BYTES:
            filled += connection.recv_into(into[filled : filled + 1024 * 1024])

    return receive


def raw_read(sink: Any, place: dict[str, Any]) -> Callable[[], object]:
    def read() -> None:
        into = memoryview(mmap(-1, NUM_BYTES))
        with sink._engine.registered(into) as own:
            sink._engine.read(place["session"], own, place["address"], NUM_BYTES)

    return read


def gb_s(move: Callable[[], object]) -> float:
    started = time.perf_counter()
    move()
    return NUM_BYTES / (time.perf_counter() - started) / 1e9


def pull_forever(port: int) -> None:
    """Says when it has begun; whoever started it ends it."""
    sink = open_sink("tcp", HOST, key=KEY)
    sys.stdout.write("pulling\n")
    sys.stdout.flush()
    while True:
        sink.pull(HOST, port, version=3, lineage=1)


def main() -> None:
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["compare", transport, port, raw_port, place]:
            told = compare(transport, int(port), int(raw_port), place)  # type: ignore[arg-type]
            sys.stdout.write("\n" + json.dumps(told) + "\n")
        case ["pull", port]:
            pull_forever(int(port))
        case _:
            report()


def report() -> None:
    figures = compared("tcp")
    targets = dict(TARGETS)
    try:
        figures |= compared("mooncake")
    except TransportMissing as missing:
        sys.stderr.write(f"left out: {missing}\n")
        del targets["mooncake_share_of_raw"]
    figures |= noticed()
    shares = [figures[name] >= least for name, least in targets.items() if "share" in name]
    ok = all(shares) and figures["step_with_a_pull"] <= targets["step_with_a_pull"]
    write_report("weights", figures, targets, ok=ok)


if __name__ == "__main__":
    main()
