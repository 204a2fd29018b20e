"""The HTTP face: each vendor's API for harnesses, a health check for the supervisor.

Content goes out only when the turn is whole and in the log. A client that waits longer than
`keepalive_s` on a stream is kept alive by events that say nothing; headers are held back until
then, so that most failures still have a status of their own. Every wait ends: `Limits`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gyre.adapters.clock import Clock
from gyre.adapters.keys import KeyIdentity
from gyre.adapters.logging import bind, get_logger
from gyre.proxy.answering import Answering
from gyre.proxy.apis import models
from gyre.proxy.apis.base import Api, Exchange
from gyre.proxy.apis.chat import Chat
from gyre.proxy.apis.messages import Messages, counted
from gyre.proxy.apis.responses import Responses
from gyre.proxy.bodies import Bodies
from gyre.proxy.faults import fault_of
from gyre.proxy.live import Live, OpenCall, Waiter
from gyre.proxy.overlong import refuse_overlong
from gyre.proxy.planning import LONG_BODY, beside
from gyre.proxy.polling import BusyPolling
from gyre.proxy.readings import Readings
from gyre.proxy.requests import BadRequest, ContextFull, Fault, Sampling
from gyre.proxy.sending import Stream, is_here
from gyre.proxy.service import Proxy

# What is nobody's business beyond the check of the key.
_CREDENTIALS = ("authorization", "x-api-key", "cookie")
# A stream lasts as long as its call may; this much longer if its turn is slow to be recorded.
_COMMIT_S = 45.0
# Of a fault's text in the log: clients choose parts of it.
_LINE_CHARS = 300
# For a client that sends on after its answer, so that it sees the answer and not a reset.
_LINGERING_S = 2.0
# Whose request it is, for the log.
_BOUND = web.RequestKey("bound", dict[str, str])

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CHAT = Chat()
_MESSAGES = Messages()
APIS: dict[str, Api] = {
    "/v1/chat/completions": _CHAT,
    "/v1/responses": Responses(),
    "/v1/messages": _MESSAGES,
}


def app_runner(proxy: Proxy, clock: Clock, *, polling: BusyPolling | None = None) -> web.AppRunner:
    """What serves the proxy, not set up yet. Requests end when their client leaves."""
    return web.AppRunner(
        ProxyApp(proxy, clock, polling or nullcontext()).application(),
        handler_cancellation=True,
        access_log=None,
        logger=_server_log(),
        auto_decompress=False,  # `Bodies` does it, beside the loop and within bounds
        keepalive_timeout=proxy.limits.idle_timeout_s,
        lingering_time=_LINGERING_S,
    )


class ProxyApp:
    """Handlers over a Proxy. Holds no state of calls, but what is known of histories.

    polling: entered by each call while it is open."""

    def __init__(self, proxy: Proxy, clock: Clock, polling: AbstractContextManager[object]) -> None:
        self._proxy = proxy
        self._clock = clock
        self._polling = polling
        self._limits = proxy.limits
        self._bodies = Bodies(proxy.limits)
        self._readings: Readings[tuple[str, Api]] = Readings(proxy.limits.max_reading_bytes)

    def application(self) -> web.Application:
        """The routes, each with errors in its API's shape."""
        app = web.Application(client_max_size=self._limits.max_body_bytes, middlewares=[_errors])
        for path, api in APIS.items():
            app.router.add_post(path, self._call(api))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._models)
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        app.router.add_get("/api/hello", self._hello)
        app.router.add_post("/attempt/settle", self._settle)
        app.router.add_get("/healthz", self._health)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        ready = self._proxy.caught_up.is_set()
        return web.Response(status=200 if ready else 503, text="ok\n" if ready else "starting\n")

    async def _models(self, request: web.Request) -> web.Response:
        headers = _headers(request)
        identity = await self._proxy.authorize(models.key(headers))
        spec = self._proxy.served(identity.job).spec
        created = int(self._clock.now())
        body = models.answer(request.match_info.get("name"), headers, spec=spec, created=created)
        return web.Response(body=body, content_type="application/json")

    async def _settle(self, request: web.Request) -> web.Response:
        """The runner's word that the attempt's harness has ended."""
        identity = await self._proxy.authorize(models.key(_headers(request)))
        await self._proxy.settle(identity)
        return web.Response(status=204)

    async def _hello(self, request: web.Request) -> web.Response:
        """What Anthropic's clients knock at before they say anything."""
        return web.Response(body=b'{"message":"hello"}', content_type="application/json")

    async def _count_tokens(self, request: web.Request) -> web.Response:
        headers = _headers(request)
        identity = await self._proxy.authorize(_MESSAGES.key(headers))
        request[_BOUND] = {"job": identity.job, "execution": identity.execution}
        with bind(**request[_BOUND]):
            try:
                exchange = await self._parse(request, _MESSAGES, headers, identity)
                num_tokens = await self._proxy.count_tokens(identity, exchange.request)
            except ContextFull as full:  # who asks how long it is wants to know that
                num_tokens = full.num_tokens
        return web.Response(body=counted(num_tokens), content_type="application/json")

    def _call(self, api: Api) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            headers = _headers(request)
            identity = await self._proxy.authorize(api.key(headers))
            request[_BOUND] = {"job": identity.job, "execution": identity.execution}
            with bind(**request[_BOUND]), self._polling:
                return await self._complete(request, api, headers, identity)

        return handle

    async def _complete(
        self, request: web.Request, api: Api, headers: dict[str, str], identity: KeyIdentity
    ) -> web.StreamResponse:
        since = asyncio.get_running_loop().time()
        waiter = Waiter(is_here=lambda: is_here(request), since=since)
        exchange = await self._parse(request, api, headers, identity)
        live, call = await self._proxy.begin(
            identity,
            exchange.request,
            waiter,
            api=request.path.removeprefix("/v1/"),
            is_retry=headers.get("x-stainless-retry-count", "0") not in ("", "0"),
        )
        return await self._wait(request, exchange, live, call, waiter, identity)

    async def _parse(
        self, request: web.Request, api: Api, headers: dict[str, str], identity: KeyIdentity
    ) -> Exchange:
        served = self._proxy.served(identity.job)
        rollout = served.spec.rollout
        sampling = Sampling(temperature=rollout.temperature, max_new_tokens=rollout.max_new_tokens)
        kept = {name: text for name, text in headers.items() if name not in _CREDENTIALS}
        body = await self._bodies.read(request)
        known = self._readings.find((identity.execution, api), body)
        if len(body) - (known.num_bytes if known else 0) > LONG_BODY:
            exchange = await beside(lambda: api.parse(body, kept, sampling, known))
        else:
            exchange = api.parse(body, kept, sampling, known)
        most = self._limits.max_messages
        if len(exchange.request.messages) > most:
            too_large = f"the request has more than {most} messages"
            raise BadRequest(too_large, code="request_too_large", status=413)
        await refuse_overlong(exchange.request, served.codec, served.spec.model.context_tokens)
        self._readings.keep((identity.execution, api), exchange.request.reading, known)
        return exchange

    async def _wait(
        self,
        request: web.Request,
        exchange: Exchange,
        live: Live,
        call: OpenCall,
        waiter: Waiter,
        identity: KeyIdentity,
    ) -> web.StreamResponse:
        delivered = False
        reason = "the client left"
        stream = Stream(request, self._limits.delivery_timeout_s)
        try:
            served = self._proxy.served(identity.job)
            wait_s = self._limits.answer_within_s
            if exchange.request.stream:
                wait_s = served.spec.rollout.call_timeout_s + _COMMIT_S
            answering = Answering(
                exchange,
                call,
                waiter,
                stream,
                clock=self._clock,
                keepalive_s=self._limits.keepalive_s,
                deadline=waiter.since + wait_s,
            )
            response = await answering.run(
                lambda: self._proxy.calls.answer(call, exchange.request, served.codec)
            )
            delivered = True
            return response
        except ConnectionError as error:
            reason = f"the connection broke: {type(error).__name__}"
            raise
        except Exception as error:
            if not stream.is_open:
                raise
            return await stream.fail(exchange, fault_of(error))
        finally:
            self._proxy.calls.leave(live, call, waiter, delivered=delivered, reason=reason)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The edge: whatever goes wrong, the client is told in its API's shape."""
    try:
        return await handler(request)
    except ConnectionError:
        raise  # nobody is there to be told
    except Exception as error:  # noqa: BLE001  what is not foreseen is told, and logged whole
        with bind(**request.get(_BOUND, {})):
            return _error(request, fault_of(error))


def _error(request: web.Request, fault: Fault) -> web.Response:
    reply = _api_of(request).error(fault)
    response = web.Response(
        status=reply.status,
        body=reply.body,
        headers=dict(reply.headers),
        content_type="application/json",
    )
    if fault.status == 408:
        response.force_close()  # what else comes on this connection belongs to the same body
    get_logger().warning(
        "request_refused", path=request.path, status=reply.status, error=str(fault)[:_LINE_CHARS]
    )
    return response


def _api_of(request: web.Request) -> Api:
    """Whose client asks, also where nothing is served."""
    is_anthropic = request.path.startswith("/v1/messages/") or models.is_anthropic(request.headers)
    return APIS.get(request.path, _MESSAGES if is_anthropic else _CHAT)


class _Unreadable(logging.Filter):
    """Of what aiohttp says about requests that are no HTTP, the kind of fault: the rest is the
    client's text, which may hold a key. Nothing of clients that are gone."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args = "request_unreadable: %s", (type(error).__name__,)
            record.exc_info = None
        return not isinstance(error, ConnectionError)


def _server_log() -> logging.Logger:
    log = logging.getLogger("gyre.proxy.http")
    if not log.filters:
        log.addFilter(_Unreadable())
    return log


def _headers(request: web.Request) -> dict[str, str]:
    return {name.lower(): text for name, text in request.headers.items()}
