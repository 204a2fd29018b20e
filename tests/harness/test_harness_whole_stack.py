"""Every agent program in Gyre's own stack under its supervisor: a job goes in by the API, and comes
out trained by one step. Only what the engines draw is loaded (`gyre.testkit.harness_engine`)."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.journal import Fact
from gyre.cli.client import ApiClient
from gyre.contracts.events.calls import CallRecorded
from gyre.contracts.events.executions import Terminated
from gyre.contracts.events.scores import Evaluated
from gyre.contracts.http import JobView
from gyre.embedded import control
from gyre.testkit.consumption_audit import ConsumedBatch, audit_consumption
from gyre.testkit.harness_plays import TEST_SH
from gyre.testkit.harness_programs import CLAUDE_CODE, PROGRAMS, WRITE, Program
from gyre.testkit.harness_script import PLAY_VARIABLE, Play, Scene, tool_call
from gyre.testkit.harness_stack import STACK, make_model, one_step_job
from gyre.testkit.log_audit import RunLog, audit, read_run

# Small prompts: the policy is computed on a CPU.
SETTINGS: dict[str, dict[str, Any]] = {
    "claude-code": {"bare": True, "tools": ["Bash"]},
    "codex": {},
    "mini-swe-agent": {},
}
# With an agent beside the main one, which the program waits for.
DELEGATING = {
    "tools": ["Bash", "Agent"],
    "env": {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"},
}
# Some 6600 tokens: two of them fill the context behind the program's own 4600.
NOISE = "seq -s ' ' 1000 3000; "
# Cues of one stack's programs are told apart by their numbers.
NUMBERS = {name: 10 * index for index, name in enumerate(SETTINGS, 1)}


def scenes_of(program: Program, shared: Path) -> tuple[Scene, ...]:
    """Of several executions only the first one there does the task, so that there is something to
    learn. shared: a directory that all see."""
    first, last = NUMBERS[program.name] + 2, NUMBERS[program.name] + 9
    place = shlex.quote(str(shared / program.name))
    write = f"if mkdir {place} 2>/dev/null; then {WRITE}fi; "
    return (
        Scene(cue=f"TASK-{program.name}", says="I look. " + program.step(first)),
        Scene(cue=f"STEP-{first}", says=program.step(last, write)),
        program.done(last),
    )


def branching_scenes(shared: Path) -> tuple[Scene, ...]:
    """Claude Code delegates, fills its context, sums it up and goes on from there. The first one
    there does the task."""
    agent = tool_call(
        "Agent", description="a part", prompt="PART-91: do it", subagent_type="general-purpose"
    )
    step, place = CLAUDE_CODE.step, shlex.quote(str(shared / "branching"))
    write = f"if mkdir {place} 2>/dev/null; then {WRITE}fi; "
    return (
        Scene(cue="TASK-branching", says="I delegate. " + agent),
        Scene(cue="PART-91", says=step(92)),
        Scene(cue="STEP-92", says="RESULT-91"),
        Scene(cue="RESULT-91", says=step(93, NOISE)),
        Scene(cue="STEP-93", says=step(94, NOISE)),
        Scene(
            cue="CRITICAL: Respond with TEXT ONLY",
            says="<analysis>a</analysis>\n<summary>SUMMARY-91</summary>",
        ),
        Scene(cue="STEP-94", says=step(99, write)),
        CLAUDE_CODE.done(99),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A job's log behind its step, and what was found trained."""

    facts: list[Fact]
    calls: list[Fact]
    log: RunLog
    batch: ConsumedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running stack, what its engines play, and where its tasks are."""

    info: control.StackInfo
    play: Play
    model: Path
    root: Path

    def job(self, program: Program, what: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Whose task's first scene has the cue TASK-<what>."""
        task = self.root / "tasks" / what / "task"
        (task / "tests").mkdir(parents=True)
        (task / "tests" / "test.sh").write_text(TEST_SH)
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "instruction.md").write_text(f"TASK-{what}: write the answer")
        harness = {"profile": program.name, "settings": settings}
        return one_step_job(self.model, task.parent, harness)

    def trained(self, job: dict[str, Any]) -> Trained:
        """The job after its one step."""
        with closing(ApiClient(self.info.urls["scheduler"], self.info.token)) as client:
            view = wait(client, client.submit(job).id, deadline_s=300)
        assert (view.status, view.version) == ("succeeded", 1), view
        blobs = DirectoryBlobStore(self.info.home / "blobs")
        facts, calls = asyncio.run(read_run(self.info.urls["nats"], view.id, blobs))
        log = RunLog.of(facts, calls)
        audit(log, num_steps=1, groups_per_step=1, blobs=blobs)
        [batch] = audit_consumption(facts, calls, blobs)
        return Trained(facts=facts, calls=calls, log=log, batch=batch)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = tmp_path_factory.mktemp("whole")
    model = make_model(root / "model")
    shared = root / "shared"
    shared.mkdir()
    scenes = [scene for program in PROGRAMS.values() for scene in scenes_of(program, shared)]
    scenes += branching_scenes(shared)
    play = Play.write(root / "play", model, scenes)
    environ = dict(os.environ) | {PLAY_VARIABLE: str(play.directory)}
    home = root / "home"
    info = control.up(home, cells=2, environ=environ, owner=os.getpid(), stack=STACK)
    try:
        yield Stack(info=info, play=play, model=model, root=root)
    finally:
        control.down(home, purge=True)


@pytest.mark.timeout(480)
def test_a_job_is_sampled_scored_and_trained(stack: Stack, program: Program) -> None:
    run = stack.trained(stack.job(program, program.name, SETTINGS[program.name]))
    assert_played(stack.play, program, run.facts, run.calls)
    [step] = run.log.steps
    assert step.statistics.num_targets == sum(run.log.committed_tokens.values())


@pytest.mark.timeout(480)
@pytest.mark.parametrize("program", ["claude-code"], indirect=True)
def test_agents_and_a_full_context_are_trained_token_by_token(
    stack: Stack, program: Program
) -> None:
    """Each path as it was sampled: before the summary, the summary, from it on, the other agent."""
    job = stack.job(program, "branching", DELEGATING)
    job["rollout"] |= {"max_new_tokens": 1000}
    run = stack.trained(job)
    assert stack.play.surprises == []
    calls = [fact.body for fact in run.calls if isinstance(fact.body, CallRecorded)]
    assert Counter(call.request_role for call in calls) == {
        "main": 2 * 5,
        "main-summary": 2,
        "sub-agent": 2 * 2,
    }
    assert run.batch.roles == {"main": 2 * 2, "main-summary": 2, "sub-agent": 2}
    assert run.batch.num_targets == sum(len(call.output_ids) for call in calls)
    statistics = run.batch.step.statistics
    assert statistics.num_computed_tokens < statistics.num_path_tokens


def assert_played(play: Play, program: Program, facts: list[Fact], calls: list[Fact]) -> None:
    """Both executions ended well, and each said the script, all of it and nothing else."""
    assert play.surprises == []
    ends = [fact.body for fact in facts if isinstance(fact.body, Terminated)]
    assert [(end.reason, end.exit_code) for end in ends] == [("completed", 0)] * 2
    scores = [fact.body.reward for fact in facts if isinstance(fact.body, Evaluated)]
    assert sorted(scores) == [0.0, 1.0]
    cues = [scene.cue for scene in scenes_of(program, play.directory)]
    whole = {each.cue: each.whole for each in play.played if each.kept == 0}
    recorded = [fact.body for fact in calls if isinstance(fact.body, CallRecorded)]
    for end in ends:
        own = [call for call in recorded if call.execution == end.execution]
        assert [call.output_ids for call in own] == [whole[cue] for cue in cues]
        assert {(call.request_role, call.outcome, call.fork_reason) for call in own} == {
            ("main", "committed", None)
        }


def wait(client: ApiClient, job: str, deadline_s: float) -> JobView:
    deadline = time.monotonic() + deadline_s
    while True:
        view = client.job(job)
        if view.status in ("succeeded", "failed", "cancelled"):
            return view
        assert time.monotonic() < deadline, f"not finished: {view}"
        time.sleep(0.5)
