"""The secrets of one stack: made once, kept in a file that only its owner reads."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gyre.embedded.paths import StackPaths, read_json, write_json

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSecrets:
    """api_token: bearer token of the REST API. key_secret: HMAC key of the proxy's keys.

    nats_password: password of the embedded nats-server's one user.
    """

    api_token: str
    key_secret: str
    nats_password: str

    def __repr__(self) -> str:
        return "StackSecrets(...)"


def load_or_create(paths: StackPaths, environ: Mapping[str, str]) -> StackSecrets:
    """The stack's secrets; `GYRE_API_TOKEN` and `GYRE_KEY_SECRET` win and are remembered."""
    stored = read_json(paths.secrets) or {}
    secret_values = StackSecrets(
        api_token=environ.get("GYRE_API_TOKEN") or stored.get("api_token") or _fresh(),
        key_secret=environ.get("GYRE_KEY_SECRET") or stored.get("key_secret") or _fresh(),
        nats_password=stored.get("nats_password") or _fresh(),
    )
    if asdict(secret_values) != stored:
        write_json(paths.secrets, asdict(secret_values))
    return secret_values


def _fresh() -> str:
    return secrets.token_hex(TOKEN_BYTES)
