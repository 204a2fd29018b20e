"""The trainer's side of its control socket: JSON lines, one command at a time.

Request {"id", "command", "arguments"}; answer {"id", "result"} or {"id", "error": {"kind",
"message"}}. The first line the trainer sends is {"ready": {...}}. When the other end closes, the
trainer ends: at once if idle, and out of whatever it is computing or waiting for if not.
"""

from __future__ import annotations

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
EXIT_ORPHANED = 4


def open_control(place: str) -> socket.socket:
    """place: the number of an inherited socket, or the path of a Unix socket to connect to."""
    if place.isdecimal():
        return socket.socket(fileno=int(place))
    control = socket.socket(socket.AF_UNIX)
    control.connect(place)
    return control


def serve(control: socket.socket, commands: TrainerCommands) -> None:
    """Returns after `exit` or when the other end has closed."""
    ended = threading.Event()
    threading.Thread(target=_watch, args=(control, ended), daemon=True).start()
    try:
        with control.makefile("rwb") as stream:
            _send(stream, {"ready": commands.run("status", {})})
            for line in stream:
                request = json.loads(line)
                if request["command"] == "exit":
                    _send(stream, {"id": request["id"], "result": {}})
                    return
                _send(stream, {"id": request["id"], **_answer(commands, request)})
    except (BrokenPipeError, ConnectionResetError):
        return  # the other end is gone: so are we
    finally:
        ended.set()


def _answer(commands: TrainerCommands, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments = request.get("arguments", {})
        if not isinstance(arguments, dict):
            raise BadCommand("arguments must be an object")
        return {"result": commands.run(request["command"], arguments)}
    except TrainerError as error:
        return {"error": {"kind": error.kind, "message": str(error)}}


def _send(stream: Any, message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def _watch(control: socket.socket, ended: threading.Event) -> None:
    """A collective can block for its whole time-out; an orphan must not live that long."""
    poll = select.poll()
    poll.register(control.fileno(), select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    poll.poll()
    if not ended.wait(_ORDERLY_EXIT_S):
        os._exit(EXIT_ORPHANED)
