"""Executions that are not sealed, and their calls: carriers, and how one comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from gyre.contracts.job import JobSpec
from gyre.core.matching import Matcher, Plan, opening_of
from gyre.core.origins import Origin, ReadOrigin, main_origin
from gyre.proxy.codecs.encoding import Codec, ParsedTurn
from gyre.proxy.deliveries import Deliveries
from gyre.proxy.executions import Execution
from gyre.proxy.history import Past
from gyre.proxy.recorder import CallLog
from gyre.proxy.sampling.course import Generation
from gyre.proxy.sampling.tails import Tails
from gyre.proxy.turns import sent_turn
from gyre.proxy.watch import Signal


@dataclass(slots=True, kw_only=True, eq=False)
class Waiter:
    """One request that waits. is_here: whether its connection is not known to be gone. since: when
    it came, on the event loop's clock. news: of its call. displaced: a retry has its place."""

    is_here: Callable[[], bool]
    since: float
    news: Signal = field(default_factory=Signal)
    displaced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A turn that is sampled. finish: stop or length. created: unix seconds."""

    turn: ParsedTurn
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    num_cached: int
    created: int


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCall:
    """A call whose answer has not arrived. task: ends with the turn, or with a Fault.

    whole: its turn; what is to be sent can be made while the log is asked. is_recorded: it is in
    the log and may go out. generation: None when an earlier process sampled it. superseded: an
    equal call took its place while it ended. grace: what gives it up while nobody waits for it.
    """

    id: str
    attempt: int
    plan: Plan
    origin: Origin
    generation: Generation | None
    task: asyncio.Future[Whole]
    whole: Whole | None = None
    is_recorded: bool = False
    superseded: bool = False
    grace: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        """Somebody waits for it: it is not given up."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None


@dataclass(slots=True, kw_only=True)
class Live:
    """One execution that is not sealed: its tree, its log, its calls.

    read_origin: the harness's way to say which of its agents asks.
    next_index: of the next call; also above every index that the log names, recorded or not.
    open: calls not delivered. running: those of them that are being sampled or recorded.
    over_attempt: calls of it and of earlier ones are given up as soon as nobody waits for them.
    undelivered: calls whose answer did not arrive, so that no retry is given it again.
    unsure: committed by an earlier process, which may have died before it delivered them.
    delivered: went out whole since the last call_recorded, which is to say so.
    tails: where its paths end, as far as this process has sampled them.
    asking: held by whoever uses the matcher: no request relies on what may be undone, and one may
    be matched in a thread. num_chars: of the longest request.
    quiet: set while there is no call that is not delivered and nothing in the background.
    """

    execution: Execution
    matcher: Matcher
    log: CallLog
    read_origin: ReadOrigin = main_origin
    next_index: int = 0
    num_chars: int = 0
    deliveries: Deliveries[Waiter] = field(default_factory=Deliveries)
    open: dict[str, OpenCall] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    over_attempt: int = 0
    undelivered: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    delivered: list[str] = field(default_factory=list)
    tails: Tails = field(default_factory=Tails)
    background: set[asyncio.Task[None]] = field(default_factory=set)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)

    def keep(self, call: OpenCall) -> None:
        """From here on `call` is to be delivered."""
        self.open[call.id] = call
        self.quiet.clear()

    def drop(self, call: str) -> None:
        """The call is delivered or over."""
        known = self.open.pop(call, None)
        if known is not None:
            known.hold()
        self._settle()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Runs `work` beside the calls; the seal waits for it."""
        task = asyncio.create_task(work)
        self.background.add(task)
        self.quiet.clear()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.background.discard(task)
        self._settle()

    def _settle(self) -> None:
        if not self.open and not self.background:
            self.quiet.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The job's part in a call."""

    spec: JobSpec
    codec: Codec


def restored(execution: Execution, past: Past, log: CallLog, codec: Codec) -> Live:
    """An execution as its log leaves it: what was sent is read out of the sampled tokens."""
    live = Live(
        execution=execution,
        matcher=Matcher(past.tree),
        log=log,
        next_index=past.next_index,
        unsure=set(past.unsure),
    )
    live.quiet.set()
    for node in past.tree.sampled():
        assert node.sampled is not None
        if node.sampled.status == "undelivered":
            live.undelivered.add(node.sampled.call)
        if node.sampled.status in ("committed", "undelivered"):
            turn = codec.parse(node.token_ids, opening=opening_of(past.tree, node))
            live.matcher.sent(node.id, sent_turn(node.sampled.call, turn))
    return live
