"""The trainer's side of its control socket: JSON lines, one command at a time.

Request {"id", "command", "arguments"}; answer {"id", "result"} or {"id", "error": {"kind",
"message"}}. The first line the trainer sends is {"ready": {...}}, or {"refused": {"kind",
"message"}} if it cannot start and ends. Then comes {"beat": {}} each second, whatever it computes
or waits for: one that was stopped, or whose machine is gone, is silent. When the other end closes,
the trainer ends: at once if idle, and out of whatever it is computing or waiting for if not.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gyre.cell_agent.trainer.errors import BadCommand, TrainerError

if TYPE_CHECKING:  # importing it loads torch and megatron, which __main__ does when it is ready to
    from gyre.cell_agent.trainer.commands import TrainerCommands

# How long an idle trainer needs to see the end of its input by itself and leave in good order.
_ORDERLY_EXIT_S = 0.5
# Often enough that a silence of a few seconds spans several.
BEAT_S = 1.0
EXIT_ORPHANED = 4


# How a rank on another node than its agent's proves to it that it is the one that was started, and
# the pipe whose other end the agent of its own node holds.
TICKET = "GYRE_CONTROL_TICKET"
LIFELINE = "GYRE_LIFELINE"
# An agent whose machine is gone closes nothing.
_UNHEARD_MS = 30_000


def open_control(place: str) -> socket.socket:
    """place: the number of an inherited socket, host:port of the cell's agent on another node, or
    the path of a Unix socket to connect to."""
    if place.isdecimal():
        return socket.socket(fileno=int(place))
    host, _, port = place.rpartition(":")
    if host and port.isdecimal():
        return _call_agent(host, int(port))
    control = socket.socket(socket.AF_UNIX)
    control.connect(place)
    return control


def _call_agent(host: str, port: int) -> socket.socket:
    control = socket.create_connection((host, port), timeout=_UNHEARD_MS / 1000)
    control.settimeout(None)
    control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    control.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MS)
    control.sendall(json.dumps({"ticket": os.environ.get(TICKET, "")}).encode() + b"\n")
    return control


def refuse(control: socket.socket, error: TrainerError) -> None:
    """In place of `serve`, by a trainer that cannot start: why, before it ends."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _Voice(control).say({"refused": _told(error)})


def end_with_agent(control: socket.socket) -> threading.Event:
    """From now on this process ends when the other end closes, or the lifeline's, whatever it
    computes or waits for: the cell's others may never come. Who ends in good order sets the
    event."""
    ended = threading.Event()
    threading.Thread(target=_watch, args=(control, ended), daemon=True).start()
    return ended


def serve(control: socket.socket, commands: TrainerCommands, ended: threading.Event) -> None:
    """Returns after `exit` or when the other end has closed. ended: of `end_with_agent`."""
    voice = _Voice(control)
    try:
        with control.makefile("rb") as stream:
            voice.say({"ready": commands.run("status", {})})
            threading.Thread(target=_beat, args=(voice, ended), daemon=True).start()
            for line in stream:
                request = json.loads(line)
                if request["command"] == "exit":
                    voice.say({"id": request["id"], "result": {}})
                    return
                voice.say({"id": request["id"], **_answer(commands, request)})
    except (BrokenPipeError, ConnectionResetError):
        return  # the other end is gone: so are we
    finally:
        ended.set()


class _Voice:
    """What goes to the agent, a line at a time, from both threads."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()

    def say(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._control.sendall(json.dumps(message).encode() + b"\n")


def _answer(commands: TrainerCommands, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments = request.get("arguments", {})
        if not isinstance(arguments, dict):
            raise BadCommand("arguments must be an object")
        return {"result": commands.run(request["command"], arguments)}
    except TrainerError as error:
        return {"error": _told(error)}


def _told(error: TrainerError) -> dict[str, str]:
    return {"kind": error.kind, "message": str(error)}


def _beat(voice: _Voice, ended: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while not ended.wait(BEAT_S):
            voice.say({"beat": {}})


def _watch(control: socket.socket, ended: threading.Event) -> None:
    poll = select.poll()
    poll.register(control.fileno(), select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    lifeline = os.environ.get(LIFELINE)
    if lifeline is not None:
        poll.register(int(lifeline), select.POLLHUP)
    poll.poll()
    if not ended.wait(_ORDERLY_EXIT_S):
        os._exit(EXIT_ORPHANED)
