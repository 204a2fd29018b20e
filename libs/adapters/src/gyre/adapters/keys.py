"""One key per attempt of an execution: says whose it is and proves it, so that the proxy needs no
table of keys. What the client claims about itself is never asked."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

_PREFIX = "gyre_"


class InvalidKey(ValueError):
    """The key was not made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIdentity:
    job: str
    execution: str
    attempt: int


def make_key(secret: str, identity: KeyIdentity) -> str:
    """`gyre_<job>.<execution>.<attempt>.<64 hex digits>`, an HMAC-SHA-256 over the first three."""
    text = f"{identity.job}.{identity.execution}.{identity.attempt}"
    return f"{_PREFIX}{text}.{_sign(secret, text)}"


def parse_key(secret: str, key: str) -> KeyIdentity:
    """Whose key it is. Raises InvalidKey for anything `make_key` did not make with `secret`."""
    parts = key.removeprefix(_PREFIX).split(".")
    if not key.startswith(_PREFIX) or len(parts) != 4 or not parts[2].isdigit():
        raise InvalidKey("not a key of this stack")
    text = ".".join(parts[:3])
    if not hmac.compare_digest(_sign(secret, text), parts[3]):
        raise InvalidKey("the key's signature is wrong")
    return KeyIdentity(job=parts[0], execution=parts[1], attempt=int(parts[2]))


def make_migration_key(secret: str, job: str) -> str:
    """What proxies and engines of one job show each other to copy cached prefixes: 64 hex digits.
    No attempt's key is one, nor the other way round: their texts have other forms."""
    return _sign(secret, f"migration:{job}")


def make_weights_key(secret: str, job: str) -> str:
    """What cells of one job prove to each other that they hold before weights are handed over: 64
    hex digits. It is never sent."""
    return _sign(secret, f"weights:{job}")


def make_blobs_key(secret: str) -> str:
    """What trainers show the blob server: 64 hex digits. It reads any blob whose digest is known,
    signs nothing, and says nothing of the secret."""
    return _sign(secret, "blobs")


def make_control_ticket(secret: str, start: str, rank: int) -> str:
    """What one rank of one start of a cell's trainer shows its cell's agent on another node: 64 hex
    digits, taken once."""
    return _sign(secret, f"control:{start}:{rank}")


def key_id(key: str) -> str:
    """The public name of a key, for events and logs: 12 hex digits of its SHA-256."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def _sign(secret: str, text: str) -> str:
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
