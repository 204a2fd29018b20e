"""The peer of bench_proxy.py as a process: `verifiers`' interception server, training client.

Runs in the peer's own environment, which has nothing of Gyre. Prints one line of JSON, the server's
address and a key for each execution, then serves until its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack

from renderers.configs import Qwen3RendererConfig
from verifiers.v1.agent import AgentConfig
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask


async def serve(model: str, engine: str, num_executions: int) -> None:
    client = TrainClientConfig(
        base_url=f"{engine}/v1", renderer=Qwen3RendererConfig(), renderer_model_name=model
    )
    async with InterceptionServer() as server, AsyncExitStack() as stack:
        keys = []
        for index in range(num_executions):
            task = TraceTask(type="bench", data=TaskData(idx=index, prompt=None))
            trace = Trace(task=task, agent=AgentInfo(config=AgentConfig()))
            session = RolloutSession(ctx=ModelContext(model="policy", client=client), trace=trace)
            _, key, _ = await stack.enter_async_context(server.acquire(session))
            keys.append(key)
        print(json.dumps({"url": server.base_url, "keys": keys}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--executions", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.model, arguments.engine, arguments.executions))
