"""Every agent program in Gyre's own stack under its supervisor: a job goes in by the API, and comes
out trained by one step. Only what the engines draw is loaded (`gyre.testkit.harness_engine`)."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
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
from gyre.testkit.harness_plays import TEST_SH
from gyre.testkit.harness_programs import PROGRAMS, WRITE, Program
from gyre.testkit.harness_script import PLAY_VARIABLE, Play, Scene
from gyre.testkit.harness_stack import STACK, make_model, one_step_job
from gyre.testkit.log_audit import RunLog, audit, read_run

# Small prompts: the policy is computed on a CPU.
SETTINGS: dict[str, dict[str, Any]] = {
    "claude-code": {"bare": True, "tools": ["Bash"]},
    "codex": {},
    "mini-swe-agent": {},
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running stack, what its engines play, and where its tasks are."""

    info: control.StackInfo
    play: Play
    model: Path
    root: Path

    def job(self, program: Program) -> dict[str, Any]:
        task = self.root / "tasks" / program.name / "task"
        (task / "tests").mkdir(parents=True)
        (task / "tests" / "test.sh").write_text(TEST_SH)
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "instruction.md").write_text(f"TASK-{program.name}: write the answer")
        harness = {"profile": program.name, "settings": SETTINGS[program.name]}
        return one_step_job(self.model, task.parent, harness)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = tmp_path_factory.mktemp("whole")
    model = make_model(root / "model")
    shared = root / "shared"
    shared.mkdir()
    scenes = [scene for program in PROGRAMS.values() for scene in scenes_of(program, shared)]
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
    with closing(ApiClient(stack.info.urls["scheduler"], stack.info.token)) as client:
        view = wait(client, client.submit(stack.job(program)).id, deadline_s=300)
    assert (view.status, view.version) == ("succeeded", 1), view
    blobs = DirectoryBlobStore(stack.info.home / "blobs")
    facts, calls = asyncio.run(read_run(stack.info.urls["nats"], view.id, blobs))
    assert_played(stack.play, program, facts, calls)
    log = RunLog.of(facts, calls)
    audit(log, num_steps=1, groups_per_step=1, blobs=blobs)
    [step] = log.steps
    assert step.statistics.num_targets == sum(log.committed_tokens.values())


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
