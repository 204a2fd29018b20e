"""Which proxy an execution belongs to, and its harness's way there.

One proxy is reached at its own URL. Several, or one that is named by `dns+`, are behind a door: a
listener of the attempt's own, served by its keeper (`relay`), whose URL stays while proxies go.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gyre.runner import relay
from gyre.runner.errors import SandboxError

LOOPBACK = "127.0.0.1"
# An agent and its sub-agents may all connect at once.
_BACKLOG = 128
_ADDRESS = re.compile(r"(dns\+)?http://[^\s/,@?#]+/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """listener: bound and listening; whoever serves it takes a copy. execution, proxies: what the
    order of the proxies follows from. note: where the door writes which of them it leads to."""

    listener: socket.socket
    execution: str
    proxies: tuple[str, ...]
    note: Path

    @property
    def url(self) -> str:
        """What the harness takes for its vendor."""
        return f"http://{LOOPBACK}:{self.listener.getsockname()[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """urls: as the settings name them, at least one."""

    urls: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Proxies:
        """From one URL or several with commas between them. Raises ValueError."""
        urls = tuple(dict.fromkeys(part for part in map(str.strip, text.split(",")) if part))
        if not urls:
            raise ValueError("names no proxy")
        proxies = cls(urls=urls)
        for url in urls if proxies.have_doors else ():
            if _ADDRESS.fullmatch(url) is None:
                raise ValueError(f"{url!r} is not http://HOST:PORT or dns+http://NAME:PORT")
            relay.endpoint(url)
        return proxies

    @property
    def have_doors(self) -> bool:
        """Whether there may be several."""
        return len(self.urls) > 1 or self.urls[0].startswith(relay.BY_NAME)

    async def of(self, execution: str) -> list[str]:
        """All that there are, the execution's own first; empty while a `dns+` name is unknown."""
        if not self.have_doors:
            return list(self.urls)
        known = await asyncio.to_thread(relay.addresses, self.urls)
        return relay.preference(execution, known)

    @contextmanager
    def door(self, execution: str, note: Path) -> Iterator[Door | None]:
        """The door of a new attempt, to be handed over within the block; None where none is needed.

        Raises SandboxError.
        """
        if not self.have_doors:
            yield None
            return
        try:
            listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
        except OSError as error:
            raise SandboxError(f"no door to the proxies: {error}") from error
        with listener:
            yield Door(listener=listener, execution=execution, proxies=self.urls, note=note)
