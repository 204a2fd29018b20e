"""Runner and evaluator around the real `llm` program: an order becomes a score, over one log. The
model is a stub of the proxy's API that solves the task."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.keys import KeyIdentity, parse_key
from gyre.adapters.workqueue.memory import MemoryWorkQueue
from gyre.contracts import subjects
from gyre.contracts.events.executions import Terminated
from gyre.contracts.events.scores import Evaluated
from gyre.evaluator import bootstrap as evaluator
from gyre.evaluator.settings import EvaluatorSettings
from gyre.runner import bootstrap as runner
from gyre.runner.profile_harnesses import ProfileHarnesses, read_environments
from gyre.runner.sandbox.process import ProcessSandbox
from gyre.runner.settings import RunnerSettings
from gyre.testkit.execution_world import JOB, ExecutionWorld, until
from gyre.testkit.harness_world import running_services

pytestmark = pytest.mark.harness

NUM_EXECUTIONS = int(os.environ.get("GYRE_TEST_EXECUTIONS", "6"))
CONCURRENCY = 8
SECRET = "a-secret"
TOOLS_FILE = Path(__file__).parents[2] / "examples" / "quickstart" / "tools.py"
TEST_SH = """#!/bin/sh
if [ "$(cat answer.txt 2>/dev/null)" = 7 ]; then reward=1; else reward=0; fi
echo $reward > "$LOGS_DIR/verifier/reward.txt"
"""


def environments() -> Path:
    path = Path(os.environ.get("GYRE_HARNESS_ENVS", Path(sys.prefix) / "gyre-env.json"))
    if not path.exists():
        pytest.skip(f"no harness environments: {path} is not there (make setup)")
    return path


class Model:
    """Answers chat completions: one tool call that writes 7, then `Done.`; keeps the keys."""

    def __init__(self) -> None:
        self.identities: list[KeyIdentity] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = (line.partition(":") for line in head.split("\r\n")[1:])
        headers = {name.lower(): value.strip() for name, _, value in lines}
        answer = b"{}"
        if head.startswith("POST /v1/chat/completions "):
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            key = headers["authorization"].removeprefix("Bearer ")
            self.identities.append(parse_key(SECRET, key))
            answer = json.dumps(self._answer(body["messages"])).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(answer), answer)
        )
        writer.close()

    def _answer(self, messages: list[dict[str, object]]) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": "Done."}
        reason = "stop"
        if not any(each["role"] == "tool" for each in messages):
            arguments = json.dumps({"path": "answer.txt", "content": "7"})
            function = {"name": "write_file", "arguments": arguments}
            call = {"id": "c1", "type": "function", "function": function}
            message, reason = {**message, "content": None, "tool_calls": [call]}, "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "policy"}
        return {**head, "choices": [choice], "usage": usage}


@asynccontextmanager
async def services(
    world: ExecutionWorld, queue: MemoryWorkQueue, proxy_url: str
) -> AsyncIterator[None]:
    """Runner and evaluator over the world's log."""
    common = {"nats_url": "nats://nowhere", "database_url": "postgresql://nowhere"}
    common |= {"home": str(world.home), "key_secret": SECRET}
    settings = RunnerSettings.model_validate({**common, "proxy_url": proxy_url})
    pythons = read_environments(environments())
    sandbox = ProcessSandbox(settings.run_dir, pythons)
    runs = runner.build(
        settings,
        log=world.log,
        queue=queue,
        clock=SystemClock(),
        sandbox=sandbox,
        harnesses=ProfileHarnesses(settings=settings, pythons=pythons),
    )
    scores = evaluator.build(EvaluatorSettings.model_validate(common), world.log, SystemClock())
    async with running_services(sandbox, runs.run, scores.run):
        yield


async def execute(world: ExecutionWorld, queue: MemoryWorkQueue, execution: str) -> float:
    """One execution from its order to its reward; scheduler and proxy are played."""
    order = {"job": JOB, "execution": execution, "group": "g0", "task": "seven", "seed": 1}
    await queue.put(subjects.start_order(JOB), json.dumps(order).encode(), execution)

    async def terminated() -> bool:
        return any(isinstance(body, Terminated) for body in await world.runs(execution))

    async def scored() -> bool:
        return bool(await world.scores(execution))

    await until(terminated, deadline_s=90)
    end = (await world.runs(execution))[-1]
    assert isinstance(end, Terminated)
    assert end.reason == "completed"
    await world.seal(execution)
    await until(scored, deadline_s=30)
    (score,) = await world.scores(execution)
    assert isinstance(score, Evaluated)
    return score.reward


async def test_an_order_becomes_a_score(tmp_path: Path) -> None:
    environments()
    world, queue, model = ExecutionWorld(tmp_path, MemoryEventLog()), MemoryWorkQueue(), Model()
    task = world.add_task("train", "seven", TEST_SH)
    (task / "instruction.md").write_text("Write the sum of 3 and 4 into answer.txt")
    settings = {"functions_path": str(TOOLS_FILE), "chain_limit": 4}
    await world.submit(harness={"profile": "llm", "timeout_s": 60, "settings": settings})
    names = [f"e{index}" for index in range(NUM_EXECUTIONS)]
    await world.dispatch("g0", "seven", *names)
    slots = asyncio.Semaphore(CONCURRENCY)

    async def in_a_slot(name: str) -> float:
        async with slots:
            return await execute(world, queue, name)

    async with model.serving() as url, services(world, queue, url):
        began = asyncio.get_running_loop().time()
        rewards = await asyncio.gather(*map(in_a_slot, names))
        seconds = asyncio.get_running_loop().time() - began
    print(f"{NUM_EXECUTIONS} executions in {seconds:.1f} s, {seconds / NUM_EXECUTIONS:.2f} s each")
    assert rewards == [1.0] * NUM_EXECUTIONS
    assert {each.execution for each in model.identities} == set(names)
    assert {each.attempt for each in model.identities} == {1}
