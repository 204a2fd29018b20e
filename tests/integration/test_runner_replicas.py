"""Several proxies behind a runner, all as processes over a real JetStream: an execution belongs to
one of them, and whatever dies, its agent ends well and the log holds each call once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.adapters.workqueue.jetstream import JetStreamWorkQueue
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed
from gyre.contracts.events.executions import AttemptStarted, Started, Terminated
from gyre.contracts.events.scheduling import Dispatched, GroupPlan, JobSubmitted
from gyre.runner.relay import preference
from gyre.testkit.execution_world import until, until_written
from gyre.testkit.log_audit import RunLog, read_run
from gyre.testkit.nats_server import NatsServer, free_port
from gyre.testkit.patient_engine import PatientEngine, patient_engine
from gyre.testkit.proxy_world import JOB, SECRET, Facts, end_process
from gyre.testkit.specs import job_spec
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.tree_paths import target_leaves

EXECUTION = f"{JOB}-g0000-e0"
NUM_TURNS = 4
# An agent as most are: it sends its whole history, and asks again without saying so. Before its
# second turn it waits for the test.
AGENT = """
import http.client, json, sys, time, urllib.error, urllib.request
from pathlib import Path

base_url, key, num_turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
messages = [{"role": "user", "content": "hi"}]

def ask():
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    for _ in range(20):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["choices"][0]["message"]
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            print(error.code, file=sys.stderr, flush=True)
        except (OSError, http.client.HTTPException) as error:
            print(repr(error), file=sys.stderr, flush=True)
        time.sleep(0.3)
    sys.exit("no answer")

for turn in range(num_turns):
    if turn == 1:
        Path("first").write_text("done")
        while not Path("go").exists():
            time.sleep(0.02)
    message = ask()
    print(message["content"], flush=True)
    messages += [message, {"role": "user", "content": f"go on {turn}"}]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("runner_replicas") / "m", seed=0)


@dataclass(slots=True, kw_only=True)
class Stack:
    """Proxies and a runner over one log; scheduler and engine are played. processes: by name, what
    runs or ran last."""

    root: Path
    nats: NatsServer
    facts: Facts
    queue: JetStreamWorkQueue
    engine: PatientEngine
    urls: tuple[str, str] = field(
        default_factory=lambda: (
            f"http://127.0.0.1:{free_port()}",
            f"http://127.0.0.1:{free_port()}",
        )
    )
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def blobs(self) -> DirectoryBlobStore:
        return DirectoryBlobStore(self.home / "blobs")

    @property
    def attempt(self) -> Path:
        return self.home / "workspaces" / JOB / EXECUTION / "a1"

    def start(self, name: str) -> None:
        """Starts a proxy, named by its URL, or the runner."""
        module = "gyre.runner" if name == "runner" else "gyre.proxy"
        own = {"GYRE_PROXY_URL": ",".join(self.urls)}
        if name != "runner":
            own = {
                "GYRE_PROXY_PORT": name.rpartition(":")[2],
                "GYRE_SERVICE_NAME": f"proxy-{self.urls.index(name)}",
                "GYRE_PROXY_LIMITS__OWNER_PATIENCE_S": "0.5",
            }
        environment = os.environ | {
            "GYRE_NATS_URL": self.nats.url,
            "GYRE_DATABASE_URL": "postgresql://unused",
            "GYRE_HOME": str(self.home),
            "GYRE_KEY_SECRET": SECRET,
            "OMP_NUM_THREADS": "1",
        }
        with (self.root / f"{module}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module], env=environment | own, stdout=output, stderr=output
            )

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].kill()
            self.processes[name].wait()

    async def ready(self, *urls: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as http:

            async def healthy() -> bool:
                with suppress(httpx.TransportError):
                    return all([(await http.get(f"{url}/healthz")).is_success for url in urls])
                return False

            await until(healthy, deadline_s=60)

    async def submit(self, model: Path) -> None:
        """The job with its one task and one cell, and the order of its execution."""
        task = self.root / "tasks" / "task"
        (task / "tests").mkdir(parents=True)
        (task / "tests" / "test.sh").write_text("exit 0\n")
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "instruction.md").write_text(AGENT)
        argv = [sys.executable, "-c", "{prompt}", "{base_url}", "{api_key}", str(NUM_TURNS)]
        spec = job_spec(
            heldout=False,
            sections={
                "name": JOB,
                "tasks": {"train": str(task.parent)},
                "harness": {"profile": "command", "timeout_s": 90, "settings": {"argv": argv}},
                "model": {"path": str(model), "context_tokens": 1024},
                "rollout": {"max_new_tokens": 48, "call_timeout_s": 60.0},
            },
        )
        submitted = JobSubmitted(spec=spec, train_tasks=("task",), heldout_tasks=())
        await self.facts.append(subjects.sched(JOB), submitted)
        await self.facts.rollout(0, self.engine.url)
        plan = GroupPlan(group="g", task="task", executions=(EXECUTION,))
        dispatched = Dispatched(
            based_on=1, now=0.0, kind="training", groups=(plan,), version=0, lineage=0
        )
        await self.facts.append(subjects.sched(JOB), dispatched)
        await self.facts.order(EXECUTION, 0)
        order = {"job": JOB, "execution": EXECUTION, "group": "g", "task": "task", "seed": 1}
        await self.queue.put(subjects.start_order(JOB), json.dumps(order).encode(), EXECUTION)

    async def in_the_second_turn(self) -> None:
        """Returns when the engine works on it, and does not end it."""
        self.engine.go.set()
        await until_written(self.attempt / "workspace" / "first", deadline_s=60)
        self.engine.go.clear()
        (self.attempt / "workspace" / "go").touch()
        await self.engine.until_asked(2)

    async def runs(self) -> list[Body]:
        """What the runner has said of the execution."""
        journal, subject = self.facts.journal, subjects.run(JOB, EXECUTION)
        return [fact.body async for fact in journal.read(Stream.FACTS, (subject,))]

    async def own_proxy(self) -> str:
        """That the execution was given at its start."""
        [started] = [body for body in await self.runs() if isinstance(body, AttemptStarted)]
        assert started.proxy is not None
        return started.proxy

    async def ended(self) -> list[Body]:
        """The calls, once they are sealed."""

        async def sealed() -> bool:
            events = await self.facts.calls(EXECUTION)
            return bool(events) and isinstance(events[-1], CallsSealed)

        try:
            await until(sealed, deadline_s=60)
        except TimeoutError:
            logs = [*self.root.glob("*.log"), *self.attempt.glob("logs/*")]
            raise AssertionError("\n".join(path.read_text()[-3000:] for path in logs)) from None
        return await self.facts.calls(EXECUTION)


@pytest.fixture
async def stack(tmp_path: Path, model: Path) -> AsyncIterator[Stack]:
    nats = NatsServer(tmp_path / "nats").start()
    async with AsyncExitStack() as closing:
        closing.callback(nats.stop)
        await ensure_streams(nats.url)
        log = JetStreamEventLog(nats.url)
        closing.push_async_callback(log.close)
        queue = JetStreamWorkQueue(nats.url)
        closing.push_async_callback(queue.close)
        stack = Stack(
            root=tmp_path,
            nats=nats,
            facts=Facts(Journal(log, SystemClock())),
            queue=queue,
            engine=await closing.enter_async_context(patient_engine(model)),
        )
        try:
            await stack.submit(model)
            for url in stack.urls:
                stack.start(url)
            await stack.ready(*stack.urls)
            stack.start("runner")
            yield stack
        finally:
            for process in stack.processes.values():
                await asyncio.to_thread(end_process, process)


async def assert_nothing_was_lost_or_doubled(stack: Stack) -> None:
    """One attempt that ended well; each of its turns once in one path, as the agent got them."""
    events = await stack.ended()
    runs = await stack.runs()
    assert [type(body) for body in runs] == [Started, AttemptStarted, Terminated]
    assert isinstance(runs[-1], Terminated)
    assert (runs[-1].reason, runs[-1].exit_code) == ("completed", 0)
    calls = [event for event in events if isinstance(event, CallRecorded)]
    assert [call.outcome for call in calls] == ["committed"] * NUM_TURNS
    assert [call.fork_reason for call in calls] == [None] * NUM_TURNS
    assert len({call.call for call in calls}) == NUM_TURNS
    tree = await stack.facts.tree(EXECUTION)
    [leaf] = target_leaves(tree)
    assert [node.id for node in tree.path(leaf.id) if node.sampled] == [c.node for c in calls]
    said = [stack.engine.tokenizer.decode(call.output_ids[:-1]) for call in calls]
    assert (stack.attempt / "logs" / "stdout.log").read_text().splitlines() == said
    log = RunLog.of(*await read_run(stack.nats.url, JOB, stack.blobs))
    assert log.dispatched == [EXECUTION]
    assert dict(log.terminated) == {EXECUTION: 1}
    assert log.sealed == dict(log.recorded) == {EXECUTION: NUM_TURNS}
    assert log.failed_calls == 0
    assert log.committed_tokens[EXECUTION] == sum(len(call.output_ids) for call in calls)


async def test_a_killed_proxy_s_execution_goes_on_at_another(stack: Stack) -> None:
    await stack.in_the_second_turn()
    own, other = preference(EXECUTION, stack.urls)
    assert await stack.own_proxy() == own
    assert (stack.attempt / "proxy").read_text() == own
    stack.kill(own)
    await stack.engine.until_asked(3)  # the agent's own retry
    stack.engine.go.set()
    await assert_nothing_was_lost_or_doubled(stack)
    assert (stack.attempt / "proxy").read_text() == other
    assert stack.engine.asked == NUM_TURNS + 1


async def test_agents_wait_while_proxies_and_runner_are_away(stack: Stack) -> None:
    await stack.in_the_second_turn()
    own, _ = preference(EXECUTION, stack.urls)
    stack.kill(*stack.urls, "runner")
    stack.engine.go.set()
    await until_written(stack.attempt / "logs" / "stderr.log")  # the agent noticed
    await asyncio.sleep(1)
    stack.start(own)
    stack.start("runner")
    await assert_nothing_was_lost_or_doubled(stack)
    noticed = (stack.attempt / "logs" / "stderr.log").read_text().splitlines()
    assert len(noticed) == 1  # its connection broke; the next one was answered
