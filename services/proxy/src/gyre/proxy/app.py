"""The HTTP face: OpenAI's chat completions for harnesses, a health check for the supervisor.

Content goes out only when the turn is whole and in the log. A client that waits longer than
KEEPALIVE_S on a stream is kept alive by empty deltas; headers are held back until then, so that
most failures still have a status of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from gyre.adapters.clock import Clock
from gyre.adapters.eventlog.base import EventLogError
from gyre.adapters.keys import KeyIdentity
from gyre.adapters.logging import bind, get_logger
from gyre.proxy import openai_chat as openai
from gyre.proxy.calls import CallFailed
from gyre.proxy.live import Live, OpenCall
from gyre.proxy.openai_chat import Answer, BadRequest, ChatRequest
from gyre.proxy.service import Proxy, Unauthorized
from gyre.proxy.tokenizer import ModelFilesError
from gyre.proxy.turns import completion_id

# Far below the 300 s after which agent programs give up on a silent stream.
KEEPALIVE_S = 10.0
MAX_BODY_BYTES = 64 * 2**20
_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class ChatApp:
    """Handlers over a Proxy. Holds no state of calls."""

    def __init__(self, proxy: Proxy, clock: Clock, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._proxy = proxy
        self._clock = clock
        self._keepalive_s = keepalive_s

    def application(self) -> web.Application:
        """The routes, with errors in OpenAI's shape."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/healthz", self._health)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        ready = self._proxy.caught_up.is_set()
        return web.Response(status=200 if ready else 503, text="ok\n" if ready else "starting\n")

    async def _models(self, request: web.Request) -> web.Response:
        await self._proxy.authorize(_key(request))
        body = openai.models("policy", int(self._clock.now()))
        return web.Response(body=body, content_type="application/json")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        identity = await self._proxy.authorize(_key(request))
        with bind(job=identity.job, execution=identity.execution):
            return await self._complete(request, identity)

    async def _complete(self, request: web.Request, identity: KeyIdentity) -> web.StreamResponse:
        body = await request.read()
        live, served = self._proxy.live(identity)
        rollout = served.spec.rollout
        chat = openai.parse_request(
            body, temperature=rollout.temperature, max_new_tokens=rollout.max_new_tokens
        )
        is_retry = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        found = self._proxy.calls.begin(live, identity.attempt, chat, served, is_retry=is_retry)
        if isinstance(found, Answer):
            return await _respond(request, chat, found, _Stream(request))
        return await self._wait(request, chat, live, found)

    async def _wait(
        self, request: web.Request, chat: ChatRequest, live: Live, call: OpenCall
    ) -> web.StreamResponse:
        call.num_waiting += 1
        delivered = False
        reason = "the client left"
        stream = _Stream(request)
        try:
            answer = await self._answer(chat, call, stream)
            response = await _respond(request, chat, answer, stream)
            delivered = True
            return response
        except CallFailed as failure:
            if not stream.is_open:
                raise
            return await stream.fail(failure)
        except ConnectionError as error:
            reason = f"the connection broke: {type(error).__name__}"
            raise
        finally:
            self._proxy.calls.leave(live, call, delivered=delivered, reason=reason)

    async def _answer(self, chat: ChatRequest, call: OpenCall, stream: _Stream) -> Answer:
        """The whole turn; keeps a streaming client alive meanwhile."""
        assert call.task is not None
        if not chat.stream:
            return await asyncio.shield(call.task)
        identity, created = completion_id(call.id), int(self._clock.now())
        while True:
            done, _ = await asyncio.wait({call.task}, timeout=self._keepalive_s)
            if done:
                return call.task.result()
            if stream.is_open:
                await stream.write(openai.idle_chunk(identity, created, chat.model))
            else:
                await stream.write(openai.opening_chunk(identity, created, chat.model))


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

    async def fail(self, failure: CallFailed) -> web.StreamResponse:
        """An error for a client that has the headers already."""
        body = openai.error_body(str(failure), status=failure.status, code=failure.code, param=None)
        await self.write(openai.error_event(body))
        return await self.close()


async def _respond(
    request: web.Request, chat: ChatRequest, answer: Answer, stream: _Stream
) -> web.StreamResponse:
    """Sends the whole answer. Raises ConnectionError when the client is gone."""
    if chat.stream:
        events = openai.answer_chunks(answer, chat.model, include_usage=chat.include_usage)
        opening = b""
        if not stream.is_open:
            opening = openai.opening_chunk(answer.id, answer.created, chat.model)
        await stream.write(opening + b"".join(events))
        response = await stream.close()
    else:
        response = web.Response(
            body=openai.completion(answer, chat.model), content_type="application/json"
        )
        await response.prepare(request)
        await response.write_eof()
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client is gone")
    return response


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turns what this service knows to go wrong into OpenAI's error shape."""
    try:
        return await handler(request)
    except BadRequest as error:
        return _error(str(error), status=error.status, code=error.code, param=error.param)
    except Unauthorized as error:
        return _error(str(error), status=401, code="invalid_api_key")
    except CallFailed as error:
        return _error(str(error), status=error.status, code=error.code)
    except (ModelFilesError, EventLogError) as error:
        get_logger().error("request_failed", error=str(error))
        return _error(str(error), status=500, code="internal_error")
    except web.HTTPException as error:
        return _error(error.reason, status=error.status, code=None)


def _error(
    message: str, *, status: int, code: str | None, param: str | None = None
) -> web.Response:
    body = openai.error_body(message, status=status, code=code, param=param)
    return web.Response(status=status, body=body, content_type="application/json")


def _key(request: web.Request) -> str | None:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None
