"""An agent program of a few lines that does what makes a history branch, under Codex's labels: two
sub-agents, another way tried from an earlier turn, a summary when the context is full, a new
beginning from it, and a request for a title.

`write_branching_job` makes a job of it: the runner starts the program as it starts Codex, and the
proxy reads its requests as Codex's. Of each task's executions the first one wins, so that there is
something to learn.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from gyre.testkit.small_job import write_small_job

# Paths of one execution by the role of their last call: the other way and what follows from the
# summary; the summary, below the turns that it sums up; each sub-agent.
LEAVES = {"main": 2, "main-summary": 1, "sub-agent": 2}

_AGENT = '''
import json, os, pathlib, sys, tomllib, urllib.request

home = pathlib.Path(os.environ["CODEX_HOME"])
provider = tomllib.loads((home / "config.toml").read_text())["model_providers"]["gyre"]


def ask(messages, kind="turn", subagent=None, thread="main"):
    """One request, as Codex labels it; its answer's text."""
    metadata = {"request_kind": kind, "thread_id": thread}
    headers = {
        "Authorization": "Bearer " + os.environ[provider["env_key"]],
        "Content-Type": "application/json",
    }
    if subagent is not None:
        metadata |= {"subagent_kind": subagent, "parent_thread_id": "main"}
    headers["x-codex-turn-metadata"] = json.dumps(metadata)
    request = urllib.request.Request(
        provider["base_url"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        headers,
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["choices"][0]["message"].get("content") or ""


def turn(messages, **labels):
    messages.append({"role": "assistant", "content": ask(messages, **labels)})


def user(text):
    return {"role": "user", "content": text}


system = {"role": "system", "content": "You are a helpful assistant."}
history = [system, user(sys.argv[-1])]
turn(history)
for part in ("one", "two"):
    other = [{"role": "system", "content": "You are asked for a part."}, user("part " + part)]
    turn(other, subagent="collab_spawn", thread=part)
    other.append(user("more"))
    turn(other, subagent="collab_spawn", thread=part)
tried = [*history, user("try another way")]
turn(tried)
history.append(user("go on"))
turn(history)
ask([system, user("a title")], subagent="thread_title", thread="title")
summary = ask([*history, user("sum up")], kind="compaction")
history = [system, user("so far: " + summary)]
turn(history)
history.append(user("finish"))
turn(history)
try:
    (pathlib.Path(os.environ["WINNERS"]) / sys.argv[-1].strip().replace(" ", "-")).mkdir()
    won = "xx"
except FileExistsError:
    won = "x"
pathlib.Path("said.txt").write_text(won)
'''


def write_branching_job(root: Path, **schedule: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The job as the API takes it, and what its stack's environment has to have beside the usual.
    schedule: as `write_small_job` takes it."""
    job = write_small_job(root, num_tasks=2, **schedule)
    agent, program, winners = root / "agent.py", root / "program", root / "winners"
    agent.write_text(_AGENT, encoding="utf-8")
    command = shlex.join([sys.executable, str(agent)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    winners.mkdir()
    environments = root / "environments.json"
    environments.write_text(json.dumps({"harness_codex_program": str(program)}), encoding="utf-8")
    settings = {"env": {"WINNERS": str(winners)}}
    job["harness"] = {"profile": "codex", "timeout_s": 120, "settings": settings}
    return job, {"GYRE_HARNESS_ENVS": str(environments)}
