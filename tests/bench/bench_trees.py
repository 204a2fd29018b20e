"""How fast a tree is built, and what of the sampled tokens it delivers, beside `verifiers`' graph.

    python tests/bench/bench_trees.py    # writes out/bench/trees.json

One execution of 300 turns whose agent sums its history up after every 50 and goes on from the
summary. Tokens per second are tokens of the tree, each once, whatever a program had to look at for
them. The tree is folded from the recorded calls, each checked against its nodes' ids (`tree`), from
the log's bytes (`tree_from_bytes`), and, as the proxy does it, from the requests themselves: every
request's messages are matched and what is new is recorded (`tree_from_requests`). The peer does the
last, with its tokens ready made.

Delivered: sampled tokens that some training sample has as targets, of all. Trained: how often such
a token is a target, on average. The peer's samples are its branches; ours are admitted without a
cap.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gyre.contracts.codec import decode_trusted, encode, make_envelope
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded
from gyre.core.matching import SentTurn
from gyre.core.messages import Message
from gyre.core.records import fold_record
from gyre.core.tree import Tree
from gyre.core.tree_counts import tree_counts
from gyre.testkit.benches import write_report
from gyre.testkit.draws import draw_samples
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.toy_encoder import GENERATION, ToyEncoder

ROOT = Path(__file__).resolve().parents[2]
NUM_TURNS, TURNS_A_WINDOW = 300, 50
HEAD_TOKENS, TOOL_TOKENS, TURN_TOKENS, SUMMARY_TOKENS = 12_000, 700, 250, 1_500
CHARS_A_TOKEN = 4
ROW_TOKENS = 131_072
NUM_ROUNDS = 7
TARGETS = {"tree_tokens_per_s": 5e6, "delivered_share": 1.0}

Found = TypeVar("Found")


@dataclass(slots=True)
class Run:
    """The execution. texts, tokens: of each message, by its number; roles likewise. calls: of each
    the messages that were sent and the one that was sampled."""

    source: random.Random = field(default_factory=lambda: random.Random(0))
    roles: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    calls: list[tuple[list[int], int]] = field(default_factory=list)

    def say(self, role: str, num_tokens: int) -> int:
        number = len(self.roles)
        self.roles.append(role)
        self.tokens.append([self.source.randrange(100, 50_000) for _ in range(num_tokens)])
        letters = self.source.choices("etaoin shrdlu", k=num_tokens * CHARS_A_TOKEN)
        self.texts.append(f"{number} {''.join(letters)}")
        return number

    def ask(self, history: list[int], num_tokens: int) -> int:
        answer = self.say("assistant", num_tokens)
        self.calls.append((list(history), answer))
        history.append(answer)
        return answer


def played() -> Run:
    run = Run()
    head = run.say("system", HEAD_TOKENS)
    task = run.say("user", TOOL_TOKENS)
    history = [head, task]
    for turn in range(1, NUM_TURNS + 1):
        run.ask(history, TURN_TOKENS)
        if turn % TURNS_A_WINDOW or turn == NUM_TURNS:
            history.append(run.say("tool", TOOL_TOKENS))
            continue
        history.append(run.say("user", TURN_TOKENS))
        run.ask(history, SUMMARY_TOKENS)
        history = [head, run.say("user", SUMMARY_TOKENS)]
    return run


class ReadyMade(ToyEncoder):
    """Texts to tokens by a table, so that matching is measured and no tokenizer."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        pairs = zip(run.texts, run.tokens, strict=True)
        self._tokens = {text: array("i", tokens) for text, tokens in pairs}

    def head(self, tools: Sequence[Mapping[str, Any]], system: Message | None) -> array[int]:
        return self._encode(system.content if system else "")

    def turn_end(self, turn: array[int], *, opening: array[int] | None = None) -> array[int]:
        return array("i")

    def _encode(self, text: str) -> array[int]:
        return self._tokens[text]


def requests(run: Run) -> list[list[Message]]:
    return [
        [Message(role=run.roles[i], content=run.texts[i]) for i in sent]  # type: ignore[arg-type]
        for sent, _ in run.calls
    ]


def matched(run: Run, asked: Sequence[Sequence[Message]]) -> MatchedCalls:
    calls, encoder = MatchedCalls(), ReadyMade(run)
    for messages, (_, answer) in zip(asked, run.calls, strict=True):
        plan = calls.matcher.plan(messages, [], attempt=1, encoder=encoder)
        calls.record(plan, run.tokens[answer], SentTurn(content=run.texts[answer]))
    return calls


def best(work: Callable[[], Found]) -> tuple[float, Found]:
    """(seconds of the fastest round, what it made)."""
    seconds = float("inf")
    for _ in range(NUM_ROUNDS):
        start = time.perf_counter()
        found = work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, found


def folded(records: Iterable[Body]) -> Tree:
    tree = Tree()
    for sequence, record in enumerate(records, start=1):
        fold_record(tree, "e", sequence, record)
    return tree


def as_logged(event: CallRecorded) -> bytes:
    envelope = make_envelope(
        event, identity=event.call, job="j", aggregate="exec.e.calls", time=0.0, causation="c"
    )
    return encode(envelope)


def delivery(tree: Tree, run: Run) -> tuple[float, float]:
    """(share of the sampled tokens that are targets, how often each of these is one)."""
    drawn = draw_samples(
        tree, attempt=1, row_tokens=ROW_TOKENS, max_trajectories=None, rng=random.Random(0)
    )
    sampled = Counter(token for _, answer in run.calls for token in run.tokens[answer])
    targets = Counter(
        block.token_ids[place] for block in drawn.blocks for place in block.target_positions
    )
    delivered = (sampled & targets).total()
    return delivered / sampled.total(), targets.total() / delivered


def peer(run: Run, home: Path) -> dict[str, float]:
    """The same in the peer's own environment, which is made if it is not there."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from setup import REQUIREMENTS, cache_directory, cached_environment

    requirements = REQUIREMENTS / "bench-verifiers.txt"
    environment = cached_environment(cache_directory(), "bench-verifiers", [requirements])
    given = home / "run.json"
    given.write_text(
        json.dumps(
            {
                "roles": run.roles,
                "texts": run.texts,
                "tokens": run.tokens,
                "calls": run.calls,
                "opener": list(GENERATION),
            }
        )
    )
    command = [str(environment / "bin" / "python"), str(ROOT / "tests/bench/verifiers_graph.py")]
    said = subprocess.run(
        [*command, str(given)], check=True, capture_output=True, text=True, timeout=300
    )
    found: dict[str, float] = json.loads(said.stdout)
    return found


def main() -> None:
    run = played()
    asked = requests(run)
    from_requests_s, calls = best(lambda: matched(run, asked))
    events = [event for event in calls.log if isinstance(event, CallRecorded)]
    lines = [as_logged(event) for event in events]
    fold_s, tree = best(lambda: folded(events))
    bytes_s, _ = best(lambda: folded(decode_trusted(line).body for line in lines))
    num_tokens = tree_counts(tree).tokens
    delivered, trained = delivery(tree, run)
    figures = {
        "tree_tokens_per_s": round(num_tokens / fold_s),
        "tree_from_bytes_tokens_per_s": round(num_tokens / bytes_s),
        "tree_from_requests_tokens_per_s": round(num_tokens / from_requests_s),
        "delivered_share": delivered,
        "trained_times": trained,
        "num_tokens": num_tokens,
        "num_calls": len(events),
    }
    with tempfile.TemporaryDirectory() as home:
        theirs = peer(run, Path(home))
    figures["verifiers_tokens_per_s"] = round(theirs["num_tokens"] / theirs["seconds"])
    figures["verifiers_delivered_share"] = round(theirs["delivered"], 4)
    figures["verifiers_trained_times"] = round(theirs["trained_times"], 4)
    figures["verifiers_num_tokens"] = theirs["num_tokens"]
    ok = all(figures[name] >= least for name, least in TARGETS.items())
    write_report("trees", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
