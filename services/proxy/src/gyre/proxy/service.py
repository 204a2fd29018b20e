"""The proxy's state and its loop over the facts.

consumes: GYRE_FACTS from the start; of GYRE_CALLS once which executions are sealed, and an
execution's own subject when it is first asked about or another proxy has written to it
produces: wake-ups for open calls; seals for executions that terminated; role switches, for
`departures`
waits for: new facts
is unblocked by: the log
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import lru_cache, partial

from gyre.adapters.clock import Clock
from gyre.adapters.eventlog.base import EventLogError, Stream
from gyre.adapters.journal import EventLost, Fact, Journal
from gyre.adapters.keys import InvalidKey, KeyIdentity, parse_key
from gyre.core.harness import harness_profile
from gyre.core.origins import Origin
from gyre.core.routing import Engine
from gyre.proxy.calls import Calls, Moved
from gyre.proxy.codecs.encoding import Codec, load_codec
from gyre.proxy.executions import Effects, Registry
from gyre.proxy.faults import Unauthorized, attempt_over, log_away
from gyre.proxy.history import Past, outlined, read_on, sealed_executions
from gyre.proxy.limits import Limits
from gyre.proxy.live import Live, OpenCall, Served, Waiter, restored
from gyre.proxy.planning import beside, opening_of, plan_of
from gyre.proxy.recorder import CallLog
from gyre.proxy.requests import Request
from gyre.proxy.sampling.departures import Departures, Switch
from gyre.proxy.sampling.generation import Generator
from gyre.proxy.sampling.migration import Migration
from gyre.proxy.sampling.streams import Engines
from gyre.proxy.sealing import Seal, Sealer
from gyre.proxy.watch import Signal, Watch

# Of reading an execution's log again because another proxy wrote to it meanwhile.
_TRIES = 3
# An engine has 2 s to hand over what it sampled; who asks waits 5 s.
SETTLE_S = 4.0
# Jobs whose tokenizers stay loaded: one runs at a time on its cells.
_CODECS = 4
# Keys whose proof is known; each attempt has one, and asks with it for hours.
_KEYS = 8192


class Proxy:
    """Who may call, and the live executions. Mutated by `follow` and by calls."""

    def __init__(
        self,
        journal: Journal,
        engines: Engines,
        clock: Clock,
        key_secret: str,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.registry = Registry()
        migration = Migration(engines.session, key_secret)
        self._departures = Departures(self.registry, migration)
        generator = Generator(self.registry, watch := Watch(), engines, migration)
        self.calls = Calls(generator, clock, self.limits)
        self.caught_up = asyncio.Event()
        self._journal = journal
        self._identity = lru_cache(maxsize=_KEYS)(partial(parse_key, key_secret))
        self._watch = watch
        self._sealed: set[str] = set()
        self._lives: dict[str, Live] = {}
        self._restoring: dict[str, asyncio.Task[Live]] = {}
        self._codec = lru_cache(maxsize=_CODECS)(load_codec)
        self._prepared: set[str] = set()
        self._preparing = asyncio.Lock()
        self._sealer = Sealer(self.limits.owner_patience_s)

    async def follow(self) -> None:
        """Looks up what is sealed, folds the facts, and seals what is over. Ends only with an
        error."""
        self._sealed = await sealed_executions(self._journal)
        head = await self._journal.head(Stream.FACTS)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sealer.run())
            group.create_task(self._departures.run())
            if head == 0:
                self._catch_up()
            async for fact in self._journal.follow(Stream.FACTS, ("facts.>",)):
                effects = self.registry.evolve(fact.job, fact.sequence, fact.body)
                if self.caught_up.is_set():
                    self._apply(effects)
                    if effects.left is not None and effects.moved:
                        self._leave(fact, effects.left, effects.moved)
                elif fact.sequence >= head:
                    self._catch_up()

    async def authorize(self, key: str | None) -> KeyIdentity:
        """Whose call it is. Waits a moment for the attempt's fact, and for the job's codec.

        Raises Unauthorized, ModelFilesError.
        """
        if key is None:
            raise Unauthorized("send the attempt's key as a bearer token")
        try:
            identity = self._identity(key)
        except InvalidKey as error:
            raise Unauthorized(str(error)) from error
        deadline = asyncio.get_running_loop().time() + self.limits.key_patience_s
        woken = Signal()
        asked = (identity.job, identity.execution, identity.attempt)
        while not self.registry.is_valid(*asked):
            if not self.registry.may_become_valid(*asked):
                raise Unauthorized("the key's attempt is over")
            with self._watch.registered(woken, (identity.execution,)):
                if not await woken.wait_until(deadline):
                    raise Unauthorized("the key's attempt has not started")
        if identity.job not in self._prepared:
            await self._prepare(identity.job)
        return identity

    async def begin(
        self,
        identity: KeyIdentity,
        request: Request,
        waiter: Waiter,
        *,
        api: str = "",
        is_retry: bool = False,
    ) -> tuple[Live, OpenCall]:
        """The call that `request` asks for, over the execution's log as it is now.

        Raises Fault, ModelFilesError.
        """
        served = self.served(identity.job)
        for _ in range(_TRIES):
            live = await self._live(identity, served.codec)
            try:
                call = await self.calls.begin(
                    live, identity.attempt, request, served, waiter, api=api, is_retry=is_retry
                )
            except Moved:
                continue
            except EventLogError as error:
                raise log_away(error) from error
            return live, call
        raise log_away("other proxies write to the execution's log")

    async def settle(self, identity: KeyIdentity) -> None:
        """The attempt's harness has ended: nothing is held for its retries. Returns when what is to
        be said of its calls is in the log, SETTLE_S at most."""
        live = self._lives.get(identity.execution)
        if live is None:
            return
        self.calls.end_attempts(live, identity.attempt, "the harness ended")
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await live.quiet.wait()

    async def count_tokens(self, identity: KeyIdentity, request: Request) -> int:
        """The input tokens that a call of `request` would have; leaves no trace of it.

        Raises Fault, ModelFilesError.
        """
        codec = self.served(identity.job).codec
        live = await self._live(identity, codec)
        async with live.asking:
            origin = Origin(role="main")
            opening = opening_of(live, request)
            plan = await plan_of(live, identity.attempt, request, codec, origin, opening)
            live.matcher.undo(plan)
        return plan.num_input_tokens

    async def _live(self, identity: KeyIdentity, codec: Codec) -> Live:
        """The execution's live state, read from the log if this process has none that is right.
        Raises Fault, EventLost."""
        execution = identity.execution
        live = self._lives.get(execution)
        if live is not None and not live.log.lost:
            return live
        if execution not in self._restoring:
            self._restoring[execution] = asyncio.create_task(self._restore(execution, codec, live))
        try:
            # Several requests wait for one reading; one that leaves must not end it.
            return await asyncio.shield(self._restoring[execution])
        except EventLost:
            raise  # asking again does not bring it back
        except EventLogError as error:
            raise log_away(error) from error

    def served(self, job: str) -> Served:
        """The job's specification and codec. Raises ModelFilesError."""
        spec = self.registry.jobs[job]
        return Served(spec=spec, codec=self._codec(spec.model.path, spec.model.family))

    async def _prepare(self, job: str) -> None:
        """Loads the codec of the job's first call beside the loop: it takes a second."""
        async with self._preparing:
            if job not in self._prepared:
                await beside(lambda: self.served(job))
                self._prepared.add(job)

    async def _restore(self, execution: str, codec: Codec, lost: Live | None) -> Live:
        """lost: what this process knew before another one wrote."""
        try:
            if lost is not None:
                self.calls.end_attempts(lost, lost.execution.attempt, "another proxy took over")
            known = self.registry.executions.get(execution)
            if known is None:
                raise attempt_over()
            past = await read_on(self._journal, known.job, execution, Past())
            if past.sealed or execution in self.registry.terminated:
                raise attempt_over()
            log = CallLog(self._journal, known.job, execution, past)
            # Each turn is read out of its tokens: a long execution takes some 10 ms.
            live = await beside(lambda: restored(known, past, log, codec))
            if execution in self.registry.terminated:
                raise attempt_over()
            live.over_attempt = max(known.attempt - 1, known.failed_attempt)
            harness = self.registry.jobs[known.job].harness
            live.read_origin = harness_profile(harness.profile).origin
            if lost is not None:
                live.delivered = lost.delivered
                live.unsure.difference_update(lost.delivered)
            self._lives[execution] = live
            return live
        finally:
            del self._restoring[execution]

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

    def _leave(self, fact: Fact, source: Engine, moved: tuple[str, ...]) -> None:
        """A cell leaves rollout, and `moved` their caches in it."""
        lives = [self._lives[execution] for execution in moved if execution in self._lives]
        alone = self.limits.owner_patience_s == 0
        switch = Switch(
            source=source,
            job=fact.job,
            sequence=fact.sequence,
            # Where there are several proxies each speaks for what it serves.
            num_executions=len(moved) if alone else len(lives),
        )
        self._departures.leave(switch, lives)

    def _revoke(self, execution: str) -> None:
        live = self._lives.get(execution)
        known = self.registry.executions.get(execution)
        if live is not None and known is not None:
            over = max(known.attempt - 1, known.failed_attempt)
            self.calls.end_attempts(live, over, "the attempt is over")

    def _seal(self, execution: str) -> None:
        if execution in self._sealed:
            self.registry.forget(execution)
            return
        self._sealed.add(execution)
        live = self._lives.get(execution)
        job = self.registry.executions[execution].job

        async def close() -> None:
            if live is not None:
                await self.calls.close(live, "the execution is over")
                live.log.unused = live.tails.unused()

        async def reread() -> CallLog:
            past = await outlined(self._journal, job, execution)
            return CallLog(self._journal, job, execution, past)

        self._sealer.add(
            Seal(
                log=None if live is None else live.log,
                close=close,
                reread=reread,
                done=lambda: self._forget(execution),
            )
        )

    def _forget(self, execution: str) -> None:
        self._lives.pop(execution, None)
        self.registry.forget(execution)
