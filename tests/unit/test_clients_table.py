"""What docs/clients.md says of agent programs is shown by tests that exist, and the one thing in it
that no other test shows."""

from __future__ import annotations

import re
from pathlib import Path

from gyre.proxy.apis.chat import completion_id
from gyre.proxy.apis.messages import message_id
from gyre.proxy.apis.messages_history import shown_tool_id
from gyre.proxy.turns import tool_call_id

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([a-z]+/test_\w+\.py)::(test_\w+)(?:\[([^\]]+)\])?`")


def test_every_test_that_the_table_names_exists() -> None:
    text = (ROOT / "docs" / "clients.md").read_text()
    named = NAMED.findall(text)
    assert len(named) == text.count("::")
    for path, name, case in named:
        source = (ROOT / "tests" / path).read_text()
        assert f"def {name}(" in source, f"{path}::{name}"
        assert f'"{case}"' in source or not case, f"{path}::{name}[{case}]"


def test_no_id_is_ever_issued_twice() -> None:
    """Over executions, their calls, and the tools of a call."""
    calls = [f"job-g{g:04d}-e{e}-c{c:05d}" for g in range(4) for e in range(4) for c in range(20)]
    tools = [tool_call_id(call, index) for call in calls for index in range(4)]
    assert len(set(tools)) == len({shown_tool_id(tool) for tool in tools}) == len(tools)
    assert len({message_id(call) for call in calls}) == len(calls)
    assert len({completion_id(call) for call in calls}) == len(calls)
