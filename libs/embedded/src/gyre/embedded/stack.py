"""Which processes make up Gyre's stack, in which order, with which settings.

stage 1   nats, postgres       unless GYRE_NATS_URL / GYRE_DATABASE_URL name outside servers
stage 2   prepare              streams and migrations; runs to its end
stage 3   store                rendezvous of the training cells, hosted by no rank
          scheduler, runner, proxy, evaluator, trajectory, cell-0 ... cell-(K-1)
          proxy-1 ... proxy-(P-1) beside the first, if GYRE_PROXIES is P
          cell-0-node-1 ... beside each cell, if GYRE_CELL_NODES is above 1
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gyre.embedded import postgres
from gyre.embedded.credentials import StackSecrets, load_or_create
from gyre.embedded.errors import EmbeddedError
from gyre.embedded.nats import NatsServer
from gyre.embedded.paths import StackPaths, read_json, write_json
from gyre.embedded.process import ProcessSpec
from gyre.embedded.readiness import LOOPBACK, file_ready, free_ports, listen, tcp_ready
from gyre.embedded.supervisor import StackDescription, Stage

SERVICES = ("scheduler", "runner", "evaluator", "trajectory")
MAX_PROXIES = 64
MAX_CELL_NODES = 64
# Where there are several proxies: how long the others leave a terminated execution to the one that
# served it. That one needs the engine's answer to an abort (2 s) and an append.
OWNER_PATIENCE_S = "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """What the supervisor is to run. `held`: sockets that live as long as the supervisor."""

    stages: tuple[Stage, ...]
    description: StackDescription
    held: tuple[socket.socket, ...] = ()


StackFactory = Callable[[StackPaths, int, Mapping[str, str]], StackPlan]


def standard(paths: StackPaths, cells: int, environ: Mapping[str, str]) -> StackPlan:
    """Gyre's own stack with `cells` cells. Prepares the servers' files, starts nothing.

    Raises EmbeddedError when a server cannot be run here.
    """
    nodes = nodes_of_a_cell(environ)
    stack_secrets = load_or_create(paths, environ)
    listeners, ports = _take_ports(paths, proxy_names(environ))
    servers, urls = server_stage(paths, environ, stack_secrets, ports["nats"])
    urls |= {name: f"http://{LOOPBACK}:{ports[name]}" for name in ("scheduler", "blobs")}
    urls |= {name: f"http://{LOOPBACK}:{ports[name]}" for name in listeners}
    env = service_environment(paths, cells, environ, stack_secrets, urls, ports)
    env["GYRE_PROXY_URL"] = ",".join(urls[name] for name in listeners)
    stages: list[Stage] = [
        servers,
        [_module("prepare", "gyre.embedded.prepare", env, oneshot=True)],
        [
            _store(env, ports["store"]),
            *_services(paths, cells, nodes, env),
            *_proxies(paths, env, listeners),
        ],
    ]
    return StackPlan(
        stages=tuple(stage for stage in stages if stage),
        description=StackDescription(cells=cells, urls=urls, ports=ports),
        held=tuple(listeners.values()),
    )


def proxy_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The proxies of a stack, GYRE_PROXIES of them, one without it. Raises EmbeddedError."""
    text = environ.get("GYRE_PROXIES", "1")
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PROXIES:
        raise EmbeddedError(f"GYRE_PROXIES={text}: must be a number from 1 to {MAX_PROXIES}")
    return ("proxy", *(f"proxy-{index}" for index in range(1, int(text))))


def nodes_of_a_cell(environ: Mapping[str, str]) -> int:
    """GYRE_CELL_NODES, 1 without it: agents of each cell, all on this machine. Raises
    EmbeddedError."""
    text = environ.get("GYRE_CELL_NODES", "1")
    if not text.isdecimal() or not 1 <= int(text) <= MAX_CELL_NODES:
        raise EmbeddedError(f"GYRE_CELL_NODES={text}: must be a number from 1 to {MAX_CELL_NODES}")
    return int(text)


def server_stage(
    paths: StackPaths, environ: Mapping[str, str], stack_secrets: StackSecrets, nats_port: int
) -> tuple[list[ProcessSpec], dict[str, str]]:
    """The servers that no environment variable names elsewhere, and the URLs of both.

    Writes nats-server's configuration and makes the database cluster the first time.
    """
    servers: list[ProcessSpec] = []
    nats_url = environ.get("GYRE_NATS_URL")
    if not nats_url:
        nats_server = NatsServer(
            directory=paths.nats, port=nats_port, password=stack_secrets.nats_password
        )
        nats_server.write_config()
        servers.append(nats_server.spec())
        nats_url = nats_server.url
    database_url = environ.get("GYRE_DATABASE_URL")
    if not database_url:
        postgres_server = postgres.locate(paths.home, environ)
        if not paths.postgres.exists():
            # A database without its stack's log: the state directory was deleted, and projections
            # of another log would be wrong for ever.
            postgres.remove(postgres_server)
        postgres.prepare(postgres_server)
        write_json(paths.postgres, {"directory": str(postgres_server.directory)})
        servers.append(postgres_server.spec())
        database_url = postgres_server.url
    return servers, {"nats": nats_url, "database": database_url}


def service_environment(
    paths: StackPaths,
    cells: int,
    environ: Mapping[str, str],
    stack_secrets: StackSecrets,
    urls: Mapping[str, str],
    ports: Mapping[str, int],
) -> dict[str, str]:
    """The environment that every process of the stack shares."""
    env = {
        **environ,
        "GYRE_HOME": str(paths.home),
        "GYRE_CELLS": str(cells),
        "GYRE_NATS_URL": urls["nats"],
        "GYRE_DATABASE_URL": urls["database"],
        "GYRE_SCHEDULER_PORT": str(ports["scheduler"]),
        "GYRE_SCHEDULER_URL": urls["scheduler"],
        "GYRE_STORE_HOST": LOOPBACK,
        "GYRE_STORE_PORT": str(ports["store"]),
        "GYRE_BLOBS_PORT": str(ports["blobs"]),
        "GYRE_BLOBS_URL": urls["blobs"],
        "GYRE_API_TOKEN": stack_secrets.api_token,
        "GYRE_KEY_SECRET": stack_secrets.key_secret,
        # Many processes share few cores: a thread pool in each would only fight the others.
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
    }
    harness_envs = Path(sys.prefix) / "gyre-env.json"
    if harness_envs.exists():
        env.setdefault("GYRE_HARNESS_ENVS", str(harness_envs))
    return env


def _take_ports(
    paths: StackPaths, proxies: Sequence[str]
) -> tuple[dict[str, socket.socket], dict[str, int]]:
    """The listener of each proxy, and the ports of everything: those of the last start where they
    are free, since harnesses may still hold a URL."""
    last = read_json(paths.ports) or {}
    listeners = {name: listen(last.get(name)) for name in proxies}
    ports = free_ports({name: last.get(name) for name in ("nats", "scheduler", "store", "blobs")})
    ports |= {name: listener.getsockname()[1] for name, listener in listeners.items()}
    write_json(paths.ports, last | ports)
    return listeners, ports


def _proxies(
    paths: StackPaths, env: Mapping[str, str], listeners: Mapping[str, socket.socket]
) -> list[ProcessSpec]:
    """Each with its own listening socket, which the supervisor holds."""
    shared = dict(env)
    if len(listeners) > 1:
        shared.setdefault("GYRE_PROXY_LIMITS__OWNER_PATIENCE_S", OWNER_PATIENCE_S)
    specs = []
    for name, listener in listeners.items():
        fd = listener.fileno()
        own = {"GYRE_SERVICE_NAME": name, "GYRE_PROXY_LISTEN_FD": str(fd)}
        specs.append(_service(paths, name, "gyre.proxy", {**shared, **own}, (fd,)))
    return specs


def _services(
    paths: StackPaths, cells: int, nodes: int, env: Mapping[str, str]
) -> list[ProcessSpec]:
    specs = [_service(paths, name, f"gyre.{name}", env) for name in SERVICES]
    for cell in range(cells):
        # All cells share this machine: calls have deadlines, training has none, so it yields.
        own = {"GYRE_CELL": str(cell), "GYRE_TRAINER_NICE": env.get("GYRE_TRAINER_NICE", "19")}
        specs.append(_service(paths, f"cell-{cell}", "gyre.cell_agent", {**env, **own}))
        for node in range(1, nodes):
            name, number = f"cell-{cell}-node-{node}", {"GYRE_NODE": str(node)}
            specs.append(_service(paths, name, "gyre.cell_agent", {**env, **own, **number}))
    return specs


def _service(
    paths: StackPaths, name: str, module: str, env: Mapping[str, str], fds: tuple[int, ...] = ()
) -> ProcessSpec:
    """A service says that it is ready by writing `run/<name>.ready` (gyre.adapters.runtime)."""
    return ProcessSpec(
        name=name,
        argv=(sys.executable, "-m", module),
        env=env,
        ready=file_ready(paths.ready(name)),
        pass_fds=fds,
        cwd=paths.home,
    )


def _store(env: Mapping[str, str], port: int) -> ProcessSpec:
    return ProcessSpec(
        name="store",
        argv=(
            sys.executable,
            "-m",
            "gyre.cell_agent.rendezvous",
            "--detached",
            "--port",
            str(port),
        ),
        env=env,
        ready=tcp_ready(port),
    )


def _module(name: str, module: str, env: Mapping[str, str], *, oneshot: bool) -> ProcessSpec:
    return ProcessSpec(name=name, argv=(sys.executable, "-m", module), env=env, oneshot=oneshot)
