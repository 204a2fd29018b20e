"""The real `llm` program, started by the keeper, against a stub of the proxy's API."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gyre.core.execution import Exit
from gyre.runner import keeper as keepers
from gyre.runner.keeper import Keeper, LaunchRequest
from gyre.runner.profiles import ExecutionContext, profile

pytestmark = pytest.mark.harness

NUM_EXECUTIONS = 24
CONCURRENCY = 8
TOOLS_FILE = Path(__file__).parents[2] / "examples" / "quickstart" / "tools.py"


def harness_python() -> Path:
    """The Python of the harness's environment, from the file that `make setup` writes."""
    path = Path(os.environ.get("GYRE_HARNESS_ENVS", Path(sys.prefix) / "gyre-env.json"))
    if not path.exists():
        pytest.skip(f"no harness environments: {path} is not there (make setup)")
    return Path(json.loads(path.read_text(encoding="utf-8"))["harness_llm_python"])


class Model(ThreadingHTTPServer):
    """Writes the key's number into answer.txt, then says so. Key `bad` gets a 400."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(body)
        key = self.headers["authorization"].removeprefix("Bearer ")
        if key == "bad":
            return self._send(400, {"error": {"message": "refused", "type": "invalid"}})
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if not any(m["role"] == "tool" for m in body["messages"]):
            arguments = json.dumps({"path": "answer.txt", "content": key})
            function = {"name": "write_file", "arguments": arguments}
            call = {"id": "c1", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "policy"}
        return self._send(200, {**answer, "choices": [choice], "usage": usage})

    def _send(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
async def llm(tmp_path: Path) -> AsyncIterator[Keeper]:
    keeper = Keeper(
        python=harness_python(),
        warm=profile("llm").warm,
        state_dir=tmp_path,
        log=tmp_path / "server.log",
    )
    await keeper.start()
    yield keeper
    await keeper.stop()


async def execute(keeper: Keeper, root: Path, port: int, key: str, prompt: str) -> Exit | None:
    """One whole execution of the harness; its exit."""
    folders = {name: root / key / name for name in ("work space", "home", "tmp")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    context = ExecutionContext(
        prompt=prompt,
        workspace=folders["work space"],
        home=folders["home"],
        tmp=folders["tmp"],
        proxy_url=f"http://127.0.0.1:{port}",
        api_key=key,
        model_name="policy",
        settings={"functions_path": str(TOOLS_FILE), "chain_limit": 8},
        python=harness_python(),
    )
    harness = profile("llm").prepare(context)
    harness.write_files()
    handle = await keeper.launch(
        LaunchRequest(
            argv=harness.argv,
            env=harness.env,
            cwd=context.workspace,
            stdout=root / key / "out",
            stderr=root / key / "err",
            status=root / key / "status.json",
        )
    )
    ended = await keepers.wait(handle, 60)
    await keepers.kill_group(handle, 0)
    return ended


async def test_concurrent_executions_do_their_work_apart(
    llm: Keeper, model: Model, tmp_path: Path, record_property: Any
) -> None:
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(index: int) -> Exit | None:
        async with gate:
            return await execute(llm, tmp_path, model.server_port, str(index), "Write it")

    started = time.monotonic()
    ended = await asyncio.gather(*(one(index) for index in range(NUM_EXECUTIONS)))
    seconds = (time.monotonic() - started) / NUM_EXECUTIONS
    record_property("seconds_per_execution", seconds)
    print(f"{seconds:.2f} s an execution at concurrency {CONCURRENCY}")
    assert ended == [Exit(exit_code=0, signal=None)] * NUM_EXECUTIONS
    written = [
        (tmp_path / str(index) / "work space" / "answer.txt").read_text(encoding="utf-8")
        for index in range(NUM_EXECUTIONS)
    ]
    assert written == [str(index) for index in range(NUM_EXECUTIONS)]
    assert len(model.requests) == 2 * NUM_EXECUTIONS


async def test_a_refused_call_makes_the_program_fail(
    llm: Keeper, model: Model, tmp_path: Path
) -> None:
    ended = await execute(llm, tmp_path, model.server_port, "bad", "Write it")
    assert ended == Exit(exit_code=1, signal=None)
    assert "refused" in (tmp_path / "bad" / "err").read_text(encoding="utf-8")


async def test_the_wire_is_what_the_transcripts_were_made_for(
    llm: Keeper, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = "--models are not an option here\nbut a prompt"
    await execute(llm, tmp_path, model.server_port, "7", prompt)
    first = model.requests[0]
    assert first["messages"] == [{"role": "user", "content": prompt}]
    monkeypatch.syspath_prepend(str(TOOLS_FILE.parent))
    transcripts = importlib.import_module("transcripts")
    assert json.dumps(first["tools"]) == json.dumps(transcripts.TOOLS)
    assert first["stream"] is False
