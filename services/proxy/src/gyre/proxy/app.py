"""The HTTP face: each vendor's API for harnesses, a health check for the supervisor.

Content goes out only when the turn is whole and in the log. A client that waits longer than
KEEPALIVE_S on a stream is kept alive by events that say nothing; headers are held back until then,
so that most failures still have a status of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from gyre.adapters.clock import Clock
from gyre.adapters.eventlog.base import EventLogError
from gyre.adapters.keys import KeyIdentity
from gyre.adapters.logging import bind, get_logger
from gyre.proxy.apis import chat
from gyre.proxy.apis.base import Api, Exchange, Opened
from gyre.proxy.apis.chat import Chat
from gyre.proxy.live import Live, OpenCall
from gyre.proxy.requests import Answer, Fault, Sampling
from gyre.proxy.service import Proxy, Unauthorized
from gyre.proxy.tokenizer import ModelFilesError

# Far below the 300 s after which agent programs give up on a silent stream.
KEEPALIVE_S = 10.0
MAX_BODY_BYTES = 64 * 2**20
_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
# What is nobody's business beyond the check of the key.
_CREDENTIALS = ("authorization", "x-api-key", "cookie")

_CHAT = Chat()
_APIS: dict[str, Api] = {"/v1/chat/completions": _CHAT}


class ProxyApp:
    """Handlers over a Proxy. Holds no state of calls."""

    def __init__(self, proxy: Proxy, clock: Clock, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._proxy = proxy
        self._clock = clock
        self._keepalive_s = keepalive_s

    def application(self) -> web.Application:
        """The routes, each with errors in its API's shape."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
        for path, api in _APIS.items():
            app.router.add_post(path, self._call(api))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/healthz", self._health)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        ready = self._proxy.caught_up.is_set()
        return web.Response(status=200 if ready else 503, text="ok\n" if ready else "starting\n")

    async def _models(self, request: web.Request) -> web.Response:
        await self._proxy.authorize(_CHAT.key(_headers(request)))
        body = chat.models("policy", int(self._clock.now()))
        return web.Response(body=body, content_type="application/json")

    def _call(self, api: Api) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            headers = _headers(request)
            identity = await self._proxy.authorize(api.key(headers))
            with bind(job=identity.job, execution=identity.execution):
                return await self._complete(request, api, headers, identity)

        return handle

    async def _complete(
        self, request: web.Request, api: Api, headers: dict[str, str], identity: KeyIdentity
    ) -> web.StreamResponse:
        body = await request.read()
        live, served = self._proxy.live(identity)
        rollout = served.spec.rollout
        sampling = Sampling(temperature=rollout.temperature, max_new_tokens=rollout.max_new_tokens)
        kept = {name: text for name, text in headers.items() if name not in _CREDENTIALS}
        exchange = api.parse(body, kept, sampling)
        is_retry = headers.get("x-stainless-retry-count", "0") not in ("", "0")
        found = self._proxy.calls.begin(
            live, identity.attempt, exchange.request, served, is_retry=is_retry
        )
        if isinstance(found, Answer):
            return await _respond(request, exchange, found, _Stream(request))
        return await self._wait(request, exchange, live, found)

    async def _wait(
        self, request: web.Request, exchange: Exchange, live: Live, call: OpenCall
    ) -> web.StreamResponse:
        call.num_waiting += 1
        delivered = False
        reason = "the client left"
        stream = _Stream(request)
        try:
            answer = await self._answer(exchange, call, stream)
            response = await _respond(request, exchange, answer, stream)
            delivered = True
            return response
        except Fault as fault:
            if not stream.is_open:
                raise
            return await stream.fail(exchange, fault)
        except ConnectionError as error:
            reason = f"the connection broke: {type(error).__name__}"
            raise
        finally:
            self._proxy.calls.leave(live, call, delivered=delivered, reason=reason)

    async def _answer(self, exchange: Exchange, call: OpenCall, stream: _Stream) -> Answer:
        """The whole turn; keeps a streaming client alive meanwhile."""
        assert call.task is not None
        if not exchange.request.stream:
            return await asyncio.shield(call.task)
        opened = Opened(
            call=call.id,
            created=int(self._clock.now()),
            num_input_tokens=call.plan.num_input_tokens,
        )
        while True:
            done, _ = await asyncio.wait({call.task}, timeout=self._keepalive_s)
            if done:
                return call.task.result()
            say = exchange.idle if stream.is_open else exchange.opening
            await stream.write(say(opened))


class _Stream:
    """A stream of events whose headers go out with its first write."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response: web.StreamResponse | None = None

    @property
    def is_open(self) -> bool:
        return self._response is not None

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError when the client is gone."""
        if self._response is None:
            self._response = web.StreamResponse(headers=_SSE)
            await self._response.prepare(self._request)
        await self._response.write(data)

    async def close(self) -> web.StreamResponse:
        assert self._response is not None
        await self._response.write_eof()
        return self._response

    async def fail(self, exchange: Exchange, fault: Fault) -> web.StreamResponse:
        """An error for a client that has the headers already."""
        await self.write(exchange.error_event(fault))
        return await self.close()


async def _respond(
    request: web.Request, exchange: Exchange, answer: Answer, stream: _Stream
) -> web.StreamResponse:
    """Sends the whole answer. Raises ConnectionError when the client is gone."""
    if exchange.request.stream:
        opening = b""
        if not stream.is_open:
            opened = Opened(
                call=answer.call, created=answer.created, num_input_tokens=answer.prompt_tokens
            )
            opening = exchange.opening(opened)
        await stream.write(opening + b"".join(exchange.events(answer)))
        response = await stream.close()
    else:
        response = web.Response(body=exchange.body(answer), content_type="application/json")
        await response.prepare(request)
        await response.write_eof()
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client is gone")
    return response


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turns what this service knows to go wrong into the API's error shape."""
    try:
        return await handler(request)
    except Fault as fault:
        return _error(request, fault)
    except Unauthorized as error:
        return _error(request, Fault(str(error), status=401, code="invalid_api_key"))
    except (ModelFilesError, EventLogError) as error:
        get_logger().error("request_failed", error=str(error))
        return _error(request, Fault(str(error), status=500, code="internal_error"))
    except web.HTTPException as error:
        return _error(request, Fault(error.reason, status=error.status, code=None))


def _error(request: web.Request, fault: Fault) -> web.Response:
    reply = _APIS.get(request.path, _CHAT).error(fault)
    return web.Response(
        status=reply.status,
        body=reply.body,
        headers=dict(reply.headers),
        content_type="application/json",
    )


def _headers(request: web.Request) -> dict[str, str]:
    return {name.lower(): text for name, text in request.headers.items()}
