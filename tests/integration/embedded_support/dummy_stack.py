"""A stack of tiny processes under the real supervisor: what `stack=` of `up` points at in tests.

GYRE_DUMMY names the processes, separated by commas, each as `name:behaviour`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from gyre.embedded.credentials import load_or_create
from gyre.embedded.paths import StackPaths, read_json, write_json
from gyre.embedded.process import ProcessSpec
from gyre.embedded.readiness import file_ready, free_ports, listen
from gyre.embedded.stack import StackPlan, server_stage
from gyre.embedded.supervisor import StackDescription

SERVICE = Path(__file__).with_name("dummy_service.py")


def plan(paths: StackPaths, cells: int, environ: Mapping[str, str]) -> StackPlan:
    load_or_create(paths, environ)
    listener = listen()
    specs = []
    for item in environ["GYRE_DUMMY"].split(","):
        name, behaviour = item.split(":")
        env = {
            **environ,
            "GYRE_HOME": str(paths.home),
            "GYRE_READY_FILE": str(paths.ready(name)),
            "GYRE_PROXY_LISTEN_FD": str(listener.fileno()),
        }
        specs.append(
            ProcessSpec(
                name=name,
                argv=(sys.executable, str(SERVICE), behaviour),
                env=env,
                ready=file_ready(paths.ready(name)),
                oneshot=behaviour == "oneshot",
                stop_grace_s=1.0,
                pass_fds=(listener.fileno(),),
            )
        )
    description = StackDescription(cells=cells, urls={}, ports={"proxy": listener.getsockname()[1]})
    return StackPlan(stages=(specs,), description=description, held=(listener,))


def servers(paths: StackPaths, cells: int, environ: Mapping[str, str]) -> StackPlan:
    """The real nats-server and Postgres, and nothing else."""
    ports = free_ports({"nats": (read_json(paths.ports) or {}).get("nats")})
    write_json(paths.ports, ports)
    specs, urls = server_stage(paths, environ, load_or_create(paths, environ), ports["nats"])
    description = StackDescription(cells=cells, urls=urls, ports=ports)
    return StackPlan(stages=(specs,), description=description)
