"""The proxy's settings, from GYRE_* variables."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gyre.adapters.settings import ServiceSettings
from gyre.proxy.limits import Limits


class ProxySettings(ServiceSettings):
    """proxy_listen_fd: an inherited listening socket, which outlives this process, so that a
    client's retry waits in its backlog while the proxy comes back. Without one the proxy binds
    proxy_host:proxy_port itself. proxy_limits: GYRE_PROXY_LIMITS__<NAME>, see `Limits`.
    proxy_busy_poll: keeps a processor busy while calls are open, see `polling`."""

    model_config = SettingsConfigDict(
        **{**ServiceSettings.model_config, "env_nested_delimiter": "__"}
    )

    proxy_host: str = "127.0.0.1"
    proxy_port: Annotated[int, Field(ge=0, le=65535)] = 7410
    proxy_listen_fd: Annotated[int, Field(ge=0)] | None = None
    proxy_limits: Limits = Limits()
    proxy_busy_poll: bool = False
