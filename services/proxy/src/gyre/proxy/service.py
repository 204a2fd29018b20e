"""The proxy's state and its loop over the facts.

consumes: GYRE_FACTS from the start; GYRE_CALLS once, to know where an earlier process left off
produces: wake-ups for open calls; seals for executions that terminated
waits for: new facts
is unblocked by: the log
"""

from __future__ import annotations

import asyncio
from functools import lru_cache

from gyre.adapters.clock import Clock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.journal import Journal
from gyre.adapters.keys import InvalidKey, KeyIdentity, parse_key
from gyre.proxy.calls import Calls
from gyre.proxy.encoding import Codec, load_codec
from gyre.proxy.engines import Engines
from gyre.proxy.executions import Effects, Registry
from gyre.proxy.generation import Generator
from gyre.proxy.history import History
from gyre.proxy.live import Live, Served, restored
from gyre.proxy.recorder import CallLog
from gyre.proxy.sealing import Sealer
from gyre.proxy.watch import Watch, wait_until

# The runner says attempt_started before it starts the harness; the fact may still be under way.
KEY_PATIENCE_S = 5.0
# Jobs whose tokenizers stay loaded: one runs at a time on its cells.
_CODECS = 4


class Unauthorized(Exception):
    """The key is missing, not of this stack, or of an attempt that is not running."""


class Proxy:
    """Who may call, and the live executions. Mutated by `follow` and by calls."""

    def __init__(self, journal: Journal, engines: Engines, clock: Clock, key_secret: str) -> None:
        self.registry = Registry()
        self.calls = Calls(Generator(self.registry, watch := Watch(), engines), clock)
        self.caught_up = asyncio.Event()
        self._journal = journal
        self._key_secret = key_secret
        self._watch = watch
        self._history = History()
        self._lives: dict[str, Live] = {}
        self._codec = lru_cache(maxsize=_CODECS)(load_codec)
        self._sealer = Sealer()

    async def follow(self) -> None:
        """Folds the calls, then the facts, and seals what is over. Ends only with an error."""
        async for fact in self._journal.read(Stream.CALLS):
            self._history.evolve(fact)
        head = await self._journal.head(Stream.FACTS)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sealer.run())
            if head == 0:
                self._catch_up()
            async for fact in self._journal.follow(Stream.FACTS, ("facts.>",)):
                effects = self.registry.evolve(fact.job, fact.sequence, fact.body)
                if self.caught_up.is_set():
                    self._apply(effects)
                elif fact.sequence >= head:
                    self._catch_up()

    async def authorize(self, key: str | None) -> KeyIdentity:
        """Whose call it is. Waits KEY_PATIENCE_S for the attempt's fact. Raises Unauthorized."""
        if key is None:
            raise Unauthorized("send the attempt's key as a bearer token")
        try:
            identity = parse_key(self._key_secret, key)
        except InvalidKey as error:
            raise Unauthorized(str(error)) from error
        deadline = asyncio.get_running_loop().time() + KEY_PATIENCE_S
        woken = asyncio.Event()
        while not self.registry.is_valid(identity.execution, identity.attempt):
            if not self.registry.may_become_valid(identity.execution, identity.attempt):
                raise Unauthorized("the key's attempt is over")
            with self._watch.registered(woken, (identity.execution,)):
                if not await wait_until(woken, deadline):
                    raise Unauthorized("the key's attempt has not started")
        return identity

    def live(self, identity: KeyIdentity) -> tuple[Live, Served]:
        """The execution's live state and its job's part. Raises ModelFilesError."""
        served = self.served(identity.job)
        live = self._lives.get(identity.execution)
        if live is None:
            live = self._restore(identity.execution, served.codec)
            self._lives[identity.execution] = live
        return live, served

    def served(self, job: str) -> Served:
        """The job's specification and codec. Raises ModelFilesError."""
        spec = self.registry.jobs[job]
        return Served(spec=spec, codec=self._codec(spec.model.path, spec.model.family))

    def _restore(self, execution: str, codec: Codec) -> Live:
        known = self.registry.executions[execution]
        past = self._history.take(execution)
        log = CallLog(
            self._journal,
            known.job,
            execution,
            last_sequence=past.last_sequence,
            num_calls=past.tree.num_calls,
        )
        return restored(known, past.tree, log, codec, next_index=past.next_index)

    def _catch_up(self) -> None:
        """The state is the log's: from here on effects are real."""
        self.caught_up.set()
        for execution in sorted(self.registry.terminated):
            self._seal(execution)

    def _apply(self, effects: Effects) -> None:
        self._watch.wake(effects.woken)
        for execution in effects.revoked:
            self._revoke(execution)
        for execution in effects.terminated:
            self._seal(execution)

    def _revoke(self, execution: str) -> None:
        live = self._lives.get(execution)
        for call in list(live.open.values()) if live else ():
            if not self.registry.is_valid(execution, call.attempt):
                call.generation.stop("the attempt is over")

    def _seal(self, execution: str) -> None:
        if execution in self._history.sealed:
            self.registry.forget(execution)
            return
        self._history.sealed.add(execution)
        live = self._lives.get(execution)
        log = live.log if live else self._bare_log(execution)
        self._sealer.add(log, live, lambda: self._forget(execution))

    def _bare_log(self, execution: str) -> CallLog:
        """The log of an execution that has made no call since this process started."""
        past = self._history.take(execution)
        return CallLog(
            self._journal,
            self.registry.executions[execution].job,
            execution,
            last_sequence=past.last_sequence,
            num_calls=past.tree.num_calls,
        )

    def _forget(self, execution: str) -> None:
        self._lives.pop(execution, None)
        self.registry.forget(execution)
