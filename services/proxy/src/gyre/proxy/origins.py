"""What the proxy knows of a request, as the harness profiles read it (`gyre.core.origins`)."""

from __future__ import annotations

from gyre.core.matching import Opening
from gyre.core.origins import RequestFacts
from gyre.proxy.requests import Request


def request_facts(request: Request, opening: Opening) -> RequestFacts:
    """opening: of the request, as the execution's matcher sees it."""
    return RequestFacts(
        headers=request.headers,
        messages=request.messages,
        num_tools=len(request.tools),
        json_schema=request.json_schema,
        same_head=opening.is_first,
    )
