"""Histories as Claude Code 2.1.220 sent them, seen on the wire of the unmodified program; only the
texts are stand-ins. Each request goes through the API's parser and the matcher: what it is told to
encode is what is new, and nothing forks but what the program means to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gyre.contracts.events.calls import RequestRole
from gyre.core.matching import SentTurn
from gyre.proxy.apis.messages import Messages
from gyre.proxy.requests import Sampling
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.toy_encoder import CLOSE, ToyEncoder

SAMPLING = Sampling(temperature=1.0, max_new_tokens=8)
MARK = {"cache_control": {"type": "ephemeral"}}
CONTEXT = "<system-reminder>\ncontext\n</system-reminder>\n\n"
AGENTS = "agent types\nand skills"
AGENTS_FOLDED = f"<system-reminder>\n{AGENTS}\n</system-reminder>\n"
NUDGE = "[nothing was visible]"
CUT = "limit hit, go on."


def text(content: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": content} | marks


def result(name: str, content: Any, **marks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": shown(name), "content": content} | marks


def use(name: str, **values: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": shown(name), "name": "Bash", "input": values}


def shown(name: str) -> str:
    return "toolu_" + identity(name).removeprefix("call_")


def identity(name: str) -> str:
    """A call's id in the log."""
    return "call_" + name.encode().hex().rjust(24, "0")


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


@dataclass
class Proxy(MatchedCalls):
    """restarts: before each request the proxy comes back with nothing but the log."""

    restarts: bool = False
    encoder: ToyEncoder = field(default_factory=ToyEncoder)

    def ask(
        self,
        *messages: dict[str, Any],
        answer: SentTurn,
        role: RequestRole = "main",
        prompt: str = "You are a program.",
    ) -> tuple[str | None, list[str]]:
        """The fork's reason, and what was encoded."""
        if self.restarts:
            self.restart()
        billing = f"x-anthropic-billing-header: {len(self.log)}"
        body = {
            "model": "policy",
            "max_tokens": 32000,
            "system": [text(billing), text(prompt)],
            "messages": messages,
        }
        request = Messages().parse(json.dumps(body).encode(), {}, SAMPLING).request
        before = len(self.encoder.encoded)
        plan = self.matcher.plan(
            request.messages, request.tools, attempt=1, encoder=self.encoder, request_role=role
        )
        self.record(plan, (300 + len(self.log), CLOSE), answer, request_role=role)
        return plan.fork_reason, self.encoder.encoded[before:]


@pytest.fixture(params=[False, True], ids=["", "restarted"])
def proxy(request: pytest.FixtureRequest) -> Proxy:
    return Proxy(restarts=request.param)


def says(content: str, *names: str, reasoning: str = "") -> SentTurn:
    ids = tuple(identity(name) for name in names)
    return SentTurn(content=content, tool_call_ids=ids, reasoning=reasoning)


BLANK = says("", reasoning="hmm")
OPENING = user(text(CONTEXT), text("do it"))


def test_the_mark_moves_and_a_block_becomes_a_string(proxy: Proxy) -> None:
    reason, encoded = proxy.ask(OPENING, system([text(AGENTS, **MARK)]), answer=says("", "t0"))
    assert (reason, encoded[1:]) == (None, [f"{CONTEXT}\ndo it", AGENTS])
    assert proxy.ask(
        OPENING,
        system(AGENTS),
        assistant(use("t0", command="ls")),
        user(result("t0", "a.txt", **MARK)),
        answer=says("done"),
    ) == (None, ["a.txt"])


def test_a_turn_without_visible_output_is_left_out_and_a_nudge_stands_behind_the_result(
    proxy: Proxy,
) -> None:
    head = [OPENING, system(AGENTS)]
    call = assistant(use("t0", command="ls"))
    proxy.ask(*head, answer=says("", "t0"))
    proxy.ask(*head, call, user(result("t0", "a.txt")), answer=BLANK)
    nudged = user(result("t0", "a.txt"), text(NUDGE, **MARK))
    assert proxy.ask(*head, call, nudged, answer=says("t1\nt2", "t1")) == (None, [NUDGE])
    assert proxy.ask(
        *head,
        call,
        nudged,
        assistant(text("t1"), text("t2"), use("t1", command="pwd")),
        user(result("t1", "/", is_error=False)),
        answer=says("done"),
    ) == (None, ["/"])


def test_a_nudge_after_a_first_blank_turn_stands_before_the_reminder_which_is_folded_later(
    proxy: Proxy,
) -> None:
    proxy.ask(OPENING, system([text(AGENTS, **MARK)]), answer=BLANK)
    merged = user(text(CONTEXT), text("do it\n"), text(NUDGE))
    assert proxy.ask(merged, system([text(AGENTS, **MARK)]), answer=says("t1", "t0")) == (
        None,
        [NUDGE],
    )
    rest = [assistant(text("t1"), use("t0", prompt="x")), user(result("t0", [text("started")]))]
    assert proxy.ask(merged, system(AGENTS), *rest, answer=says("done")) == (None, ["started"])
    folded = user(text(CONTEXT), text("do it\n"), text(AGENTS_FOLDED), text(NUDGE))
    assert proxy.ask(
        folded, *rest, assistant(text("done")), user(text("news", **MARK)), answer=says("ok")
    ) == (None, ["news"])


def test_two_nudges_the_first_with_a_line_break_after_a_turn_that_was_cut(proxy: Proxy) -> None:
    cut = assistant(text("cut of"))
    proxy.ask(OPENING, answer=says("cut of"))
    assert proxy.ask(OPENING, cut, user(text(CUT, **MARK)), answer=BLANK) == (None, [CUT])
    both = user(text(f"{CUT}\n"), text(NUDGE, **MARK))
    assert proxy.ask(OPENING, cut, both, answer=BLANK) == (None, [NUDGE])
    thrice = user(text(f"{CUT}\n"), text(f"{NUDGE}\n"), text(NUDGE, **MARK))
    assert proxy.ask(OPENING, cut, thrice, answer=says("done")) == (None, [NUDGE])


def test_text_around_parallel_calls_comes_first_and_numbers_lose_their_fraction(
    proxy: Proxy,
) -> None:
    proxy.ask(OPENING, answer=says("a\nb", "t0", "t1"))
    assert proxy.ask(
        OPENING,
        assistant(text("a"), text("b"), use("t0", command="ls"), use("t1", x=1)),
        user(result("t1", "no such tool", is_error=True), result("t0", "a.txt")),
        answer=says(" \n", "t2"),
    ) == (None, ["no such tool", "a.txt"])
    assert proxy.ask(
        OPENING,
        assistant(text("a"), text("b"), use("t0", command="ls"), use("t1", x=1)),
        user(result("t1", "no such tool", is_error=True), result("t0", "a.txt")),
        assistant(use("t2", command="ls")),
        user(result("t2", "a.txt")),
        answer=says("done"),
    ) == (None, ["a.txt"])


def test_a_sub_agent_in_parallel_and_a_compaction_are_the_forks_there_are(proxy: Proxy) -> None:
    """The summary is asked of the first rounds; the last ones are kept word for word."""
    rounds: list[dict[str, Any]] = []
    for number in range(4):
        reason, _ = proxy.ask(OPENING, *rounds, answer=says(f"step {number}", f"t{number}"))
        assert reason is None
        rounds.append(assistant(text(f"step {number}"), use(f"t{number}", command="ls")))
        rounds.append(user(result(f"t{number}", f"result {number}")))
    task = user(text(CONTEXT), text("look"))
    reason, _ = proxy.ask(task, answer=says("seen"), role="sub-agent", prompt="You help.")
    assert reason == "delegation"
    asked = user(result("t1", "result 1"), text("sum up"))
    assert proxy.ask(OPENING, *rounds[:3], asked, answer=says("summary"), role="main-summary") == (
        "compaction",
        ["sum up"],
    )
    begun = user(text(CONTEXT), text("continued: summary"))
    reason, encoded = proxy.ask(begun, *rounds[4:], answer=says("step 4", "t4"))
    assert reason == "compaction"
    assert encoded == [f"{CONTEXT}\ncontinued: summary", "result 2", "result 3"]
    assert proxy.ask(
        begun,
        *rounds[4:],
        assistant(text("step 4"), use("t4", command="ls")),
        user(result("t4", "result 4")),
        answer=says("done"),
    ) == (None, ["result 4"])
