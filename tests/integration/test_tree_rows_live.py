"""A real proxy's trees: live in it, folded from its log, read from Postgres they are the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

import gyre.adapters.journal as journal_module
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.tables import tree_nodes
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed, CallUndelivered
from gyre.contracts.events.scheduling import JobSubmitted
from gyre.core.causes import causes
from gyre.testkit.execution_world import until
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.patient_engine import PatientEngine, patient_engine
from gyre.testkit.proxy_world import JOB, Client, Facts, RunningProxy, running_proxy
from gyre.testkit.specs import job_spec
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.tree_projection import (
    DEADLINE_S,
    assert_same_tree,
    caused,
    forget_checkpoint,
    projecting,
    rows_of_tree,
    say_calls,
    until_projected,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tree_rows") / "m", seed=0)


SUB_AGENT = '{"request_kind":"turn","thread_id":"part","subagent_kind":"collab_spawn"}'
SUMMARY = '{"request_kind":"compaction","thread_id":"main"}'
TITLE = '{"request_kind":"turn","thread_id":"t","subagent_kind":"thread_title"}'


class Agent:
    """What an agent program does, as Codex labels it, through a real proxy."""

    def __init__(self, served: RunningProxy, engine: PatientEngine, key: str) -> None:
        self.client: Client = served.client(key)
        self._engine = engine

    async def ask(self, messages: list[dict[str, Any]], label: str | None = None) -> str:
        body = {"model": "policy", "messages": messages}
        headers = {} if label is None else {"x-codex-turn-metadata": label}
        answer = await self.client.post(body, **headers)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    async def turn(self, messages: list[dict[str, Any]], label: str | None = None) -> None:
        messages.append({"role": "assistant", "content": await self.ask(messages, label)})

    async def break_off(self, messages: list[dict[str, Any]]) -> None:
        """Asks and leaves before the answer is there."""
        self._engine.go.clear()
        number = self._engine.asked + 1
        asked = asyncio.create_task(self.ask(messages))
        await self._engine.until_asked(number)
        asked.cancel()
        await asyncio.wait({asked})
        self._engine.go.set()

    async def play(self) -> None:
        """Sub-agent, another way from an earlier turn, title, undelivered answer, compaction."""
        system = {"role": "system", "content": "You are a helpful assistant."}
        history = [system, user("begin")]
        await self.turn(history)
        part = [{"role": "system", "content": "You are asked for a part."}, user("the part")]
        await self.turn(part, SUB_AGENT)
        part.append(user("more"))
        await self.turn(part, SUB_AGENT)
        await self.turn([*history, user("another way")])
        history.append(user("go on"))
        await self.turn(history)
        await self.ask([system, user("a title")], TITLE)
        await self.break_off([*history, user("and then it breaks off")])
        summary = await self.ask([*history, user("sum up")], SUMMARY)
        history = [system, user(f"so far: {summary}")]
        await self.turn(history)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def submit(facts: Facts, model: Path) -> None:
    sections = {
        "model": {"path": str(model), "context_tokens": 1024},
        "harness": {"profile": "codex", "timeout_s": 60},
        "rollout": {"max_new_tokens": 48, "call_timeout_s": 30.0},
    }
    spec = job_spec(heldout=False, sections=sections)
    submitted = JobSubmitted(spec=spec, train_tasks=(), heldout_tasks=())
    await facts.append(subjects.sched(JOB), submitted)


async def test_the_live_tree_the_logs_fold_and_the_rows_are_one_tree(
    model: Path,
    nats: NatsServer,
    database: AsyncEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Some of the calls' bodies lie in the blob store.
    monkeypatch.setattr(journal_module, "MAX_EVENT_BYTES", 1500)
    log, blobs = JetStreamEventLog(nats.url), DirectoryBlobStore(tmp_path / "blobs")
    facts = Facts(Journal(log, SystemClock(), blobs))
    names = [f"{JOB}-g0000-e{number}" for number in range(3)]
    await submit(facts, model)
    journal = Journal(log, SystemClock(), blobs)
    async with patient_engine(model) as sampler, projecting(journal, database):
        sampler.go.set()
        await facts.rollout(0, sampler.url)
        async with running_proxy(log, blobs, retry_grace_s=0.05) as served:
            for name in names:
                await Agent(served, sampler, await facts.start(name)).play()
            again = Agent(served, sampler, await facts.start(names[0], attempt=2))
            await again.turn([user("from the start")])

            for name in names:
                await until_said(facts, name, CallUndelivered)
                live, logged = served.proxy._lives[name].matcher.tree, await facts.tree(name)
                assert live.nodes == logged.nodes
                assert live.calls == logged.calls
            await until_projected(log, database)
            for name in names:
                assert_same_tree(await rows_of_tree(database, name), await facts.tree(name))

            for name in names[:2]:
                await facts.terminate(name, attempt=2 if name == names[0] else 1)
                await until_said(facts, name, CallsSealed)
        await until_projected(log, database)
        for name in names:
            assert_same_tree(await rows_of_tree(database, name), await facts.tree(name))
        first = await facts.tree(names[0])
        found = {node: (one.node, one.kind) for node, one in causes(first).items()}
        assert {kind for _, kind in found.values()} == {"delegation", "summary", "continuation"}
        assert await caused(database, names[0]) == found
        assert await caused(database, names[2]) == {}  # not sealed

        # All of it made anew, while the service runs.
        async with database.begin() as connection:
            await connection.execute(update(tree_nodes).values(provenance="spoilt", cause=None))
        await forget_checkpoint(database)
        await say_calls(
            facts.journal, "other", [CallsSealed(execution="other", num_calls=0, last_seq=0)]
        )
        await until_projected(log, database)
        for name in names:
            assert_same_tree(await rows_of_tree(database, name), await facts.tree(name))
        assert await caused(database, names[0]) == found
    assert [path for path in blobs.root.rglob("*") if path.is_file()]
    statuses = {node.sampled.status for node in first.sampled() if node.sampled}
    assert statuses == {"committed", "undelivered"}
    assert {node.sampled.attempt for node in first.sampled() if node.sampled} == {1, 2}
    reasons = {node.sampled.fork_reason for node in first.sampled() if node.sampled}
    assert {"delegation", "compaction", "new_attempt", None} < reasons
    await log.close()


async def until_said(facts: Facts, execution: str, kind: type[Body]) -> None:
    async def said() -> bool:
        return any(isinstance(event, kind) for event in await facts.calls(execution))

    await until(said, DEADLINE_S)
