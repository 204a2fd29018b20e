"""Load for the proxy's benchmarks: conversations in three APIs' words, the proxy as a process of
its own, and what it costs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import orjson

from gyre.testkit.proxy_world import SECRET, end_process

START_TIMEOUT_S = 180.0
SYSTEM = "You are a helpful assistant. " * 20
_DESCRIPTION = "Runs a command and returns what it writes."
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}


class Talk(Protocol):
    """One conversation as an agent program holds it. Mutated by `take`."""

    path: str

    def body(self) -> bytes:
        """The next request, with the whole history."""
        ...

    def take(self, answer: dict[str, Any], text: str) -> None:
        """Adds an answer, and `text` as its tool calls' results, else as the user's."""
        ...


@dataclass(slots=True)
class ChatTalk:
    """OpenAI's chat completions."""

    path: str = "/v1/chat/completions"
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages += [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "go"}]

    def body(self) -> bytes:
        function = {"name": "run", "description": _DESCRIPTION, "parameters": _PARAMETERS}
        tools = [{"type": "function", "function": function}]
        return orjson.dumps({"model": "policy", "messages": self.messages, "tools": tools})

    def take(self, answer: dict[str, Any], text: str) -> None:
        message = answer["choices"][0]["message"]
        self.messages.append(message)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call in message.get("tool_calls") or ()
        ]
        self.messages += results or [{"role": "user", "content": text}]


@dataclass(slots=True)
class ResponsesTalk:
    """OpenAI's Responses API."""

    path: str = "/v1/responses"
    items: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.items.append(_said("go"))

    def body(self) -> bytes:
        tool = {"type": "function", "name": "run", "description": _DESCRIPTION}
        tools = [tool | {"parameters": _PARAMETERS}]
        request = {"model": "policy", "instructions": SYSTEM, "input": self.items, "tools": tools}
        return orjson.dumps(request | {"store": False})

    def take(self, answer: dict[str, Any], text: str) -> None:
        self.items += answer["output"]
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": text}
            for item in answer["output"]
            if item["type"] == "function_call"
        ]
        self.items += results or [_said(text)]


def _said(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


@dataclass(slots=True)
class MessagesTalk:
    """Anthropic's Messages."""

    path: str = "/v1/messages"
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.append({"role": "user", "content": "go"})

    def body(self) -> bytes:
        tool = {"name": "run", "description": _DESCRIPTION, "input_schema": _PARAMETERS}
        request = {"model": "policy", "max_tokens": 1024, "system": SYSTEM, "tools": [tool]}
        return orjson.dumps(request | {"messages": self.messages})

    def take(self, answer: dict[str, Any], text: str) -> None:
        self.messages.append({"role": "assistant", "content": answer["content"]})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": text}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        said = {"type": "text", "text": text}
        self.messages.append({"role": "user", "content": results or [said]})


TALKS: dict[str, type[ChatTalk | ResponsesTalk | MessagesTalk]] = {
    "chat": ChatTalk,
    "responses": ResponsesTalk,
    "messages": MessagesTalk,
}


async def call(session: aiohttp.ClientSession, url: str, key: str, talk: Talk, text: str) -> float:
    """One turn of `talk`; seconds from the request to the whole answer. text: see `Talk.take`."""
    body = talk.body()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    start = time.perf_counter()
    async with session.post(url + talk.path, data=body, headers=headers) as response:
        answer = await response.read()
    seconds = time.perf_counter() - start
    assert response.status == 200, answer
    talk.take(orjson.loads(answer), text)
    return seconds


@asynccontextmanager
async def proxy_process(
    nats_url: str, home: Path, *, busy_poll: bool = False
) -> AsyncIterator[tuple[str, int]]:
    """(url, process id) of a proxy that is ready. home: its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        environment = os.environ | {
            "GYRE_NATS_URL": nats_url,
            "GYRE_DATABASE_URL": "postgresql://unused",
            "GYRE_HOME": str(home),
            "GYRE_KEY_SECRET": SECRET,
            "GYRE_PROXY_LISTEN_FD": str(listener.fileno()),
            "GYRE_PROXY_BUSY_POLL": str(busy_poll),
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-m", "gyre.proxy"], env=environment, pass_fds=[listener.fileno()]
        )
        try:
            ready = home / "run" / "proxy.ready"
            deadline = time.monotonic() + START_TIMEOUT_S
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError("the proxy did not start")
                await asyncio.sleep(0.02)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", process.pid
        finally:
            end_process(process)


def cpu_s(pid: int) -> float:
    """Seconds that the threads of a process have been on a processor, to the nanosecond: the
    kernel's own count, whoever else runs."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
