"""What the installed Claude Code sends: its first request, taken by a server on loopback.

The policy learns from this what its prompts look like. Nothing of the program is kept in this
repository; another version of it, or other settings, only mean another warm start.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.proxy.apis.messages import Messages
from gyre.proxy.requests import Request, Sampling
from gyre.runner.profile_harnesses import read_programs
from gyre.runner.profiles import ExecutionContext, profile

PROMPT = "THE-PROMPT-OF-THE-TASK"
TIMEOUT_S = 60.0
_REFUSAL = b'{"type":"error","error":{"type":"invalid_request_error","message":"that is all"}}'


class _Handler(http.server.BaseHTTPRequestHandler):
    """Keeps the body of the first model request; refuses everything."""

    bodies: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.startswith("/v1/messages"):
            self.bodies.append(body)
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(_REFUSAL)))
        self.end_headers()
        self.wfile.write(_REFUSAL)

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        return


def first_request(environments: Path, settings: Mapping[str, Any], context_tokens: int) -> Request:
    """The program's first request for PROMPT, as the proxy reads it. Raises RuntimeError."""

    class Handler(_Handler):
        bodies: list[bytes] = []  # noqa: RUF012 - of this one server

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            said = _run(Path(scratch), server.server_port, environments, settings, context_tokens)
    finally:
        server.shutdown()
        server.server_close()
    if not Handler.bodies:
        raise RuntimeError(f"the program asked for nothing: {said[-300:]}")
    sampling = Sampling(temperature=1.0, max_new_tokens=1)
    return Messages().parse(Handler.bodies[0], {}, sampling).request


def _run(
    scratch: Path, port: int, environments: Path, settings: Mapping[str, Any], context_tokens: int
) -> str:
    folders = {name: scratch / name for name in ("workspace", "home", "tmp")}
    for folder in folders.values():
        folder.mkdir()
    harness = profile("claude-code").prepare(
        ExecutionContext(
            prompt=PROMPT,
            workspace=folders["workspace"],
            home=folders["home"],
            tmp=folders["tmp"],
            proxy_url=f"http://127.0.0.1:{port}",
            api_key="none",
            model_name="policy",
            settings=settings,
            program=read_programs(environments).get("claude-code"),
            context_tokens=context_tokens,
        )
    )
    harness.write_files()
    done = subprocess.run(
        harness.argv,
        env=dict(harness.env),
        cwd=folders["workspace"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout + done.stderr


def fingerprint(request: Request) -> str:
    """What of a request the policy's prompts are made of."""
    messages = [[message.role, message.content] for message in request.messages]
    return json.dumps([messages, [dict(tool) for tool in request.tools]], sort_keys=True)
