"""Two sides that hold the job's key prove it to each other before anything is said of the weights.

    puller -> {"nonce"}                 source -> {"nonce"}
    puller -> {"body", "proof"}         source -> {"body", "proof"}, or {"refused"} and its end

A proof is an HMAC-SHA-256 by the key over who speaks, both nonces and the body. The nonces are
fresh, so what was said once proves nothing again; who speaks is part of it, so nothing that one
side says can be said back to it. A stranger learns that weights are served here, no more. The
source's body carries the payload's digests, so the bytes behind it are as good as its proof. They
are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import time
from typing import Any, Literal

from gyre.cell_agent.weights.errors import CutOff, Damaged, NotTheJob, WeightTransportError

# What may be said before the other side has proved anything: a nonce, or a short body.
GREETING_BYTES = 4096
# A body with the digests of a payload: 64 hex digits for 4 MiB, so 8 TB.
ANSWER_BYTES = 128 * 1024 * 1024

_LENGTH_BYTES = 4
_NONCE_BYTES = 16
_REFUSED = "the puller does not hold this job's key"

Side = Literal["puller", "source"]


def ask(
    connection: socket.socket, key: str, body: dict[str, Any], *, answer_s: float
) -> dict[str, Any]:
    """The puller's part: what the source answers. answer_s: until the answer begins; all else takes
    the connection's own time-out. Raises WeightTransportError, OSError."""
    ours = secrets.token_bytes(_NONCE_BYTES)
    _send(connection, {"nonce": ours.hex()})
    nonces = ours + _nonce(_receive(connection, GREETING_BYTES))
    _send_proved(connection, key, "puller", nonces, body)
    _await_answer(connection, answer_s)
    answer = _receive(connection, ANSWER_BYTES)
    if "refused" in answer:
        raise NotTheJob(_REFUSED)  # in our words: whoever says so has proved nothing
    return _proved(answer, key, "source", nonces)


class Asked:
    """The source's part, with one puller."""

    def __init__(self, connection: socket.socket, key: str) -> None:
        self._connection, self._key = connection, key
        self._nonces = b""

    def body(self, within_s: float) -> dict[str, Any]:
        """What the puller asks. within_s: of all that it says until it is believed, however it is
        cut. Raises WeightTransportError, OSError; a stranger was told so."""
        deadline = time.monotonic() + within_s
        theirs = _nonce(_receive(self._connection, GREETING_BYTES, deadline))
        ours = secrets.token_bytes(_NONCE_BYTES)
        _send(self._connection, {"nonce": ours.hex()})
        self._nonces = theirs + ours
        try:
            said = _receive(self._connection, GREETING_BYTES, deadline)
            return _proved(said, self._key, "puller", self._nonces)
        except NotTheJob:
            _send(self._connection, {"refused": _REFUSED})
            raise

    def answer(self, body: dict[str, Any]) -> None:
        _send_proved(self._connection, self._key, "source", self._nonces, body)


def _send_proved(
    connection: socket.socket, key: str, side: Side, nonces: bytes, body: dict[str, Any]
) -> None:
    text = json.dumps(body)
    _send(connection, {"body": text, "proof": _proof(key, side, nonces, text.encode())})


def _proved(message: dict[str, Any], key: str, side: Side, nonces: bytes) -> dict[str, Any]:
    text, proof = message.get("body"), message.get("proof")
    if not isinstance(text, str) or not isinstance(proof, str):
        raise Damaged(f"no proof of the {side}")
    try:
        said, shown = text.encode(), proof.encode()
    except UnicodeEncodeError as error:
        raise Damaged(f"half a character in the proof of the {side}") from error
    # Compared as bytes: of text, only ASCII may be.
    if not hmac.compare_digest(_proof(key, side, nonces, said).encode(), shown):
        raise NotTheJob(f"the {side} does not hold this job's key")
    return _object(said)


def _proof(key: str, side: Side, nonces: bytes, body: bytes) -> str:
    said = b"gyre weights 1\0" + side.encode() + b"\0" + nonces + body
    return hmac.new(key.encode(), said, hashlib.sha256).hexdigest()


def _nonce(message: dict[str, Any]) -> bytes:
    nonce = message.get("nonce")
    try:
        made = bytes.fromhex(nonce) if isinstance(nonce, str) else b""
    except ValueError:
        made = b""
    if len(made) != _NONCE_BYTES:
        raise Damaged("no nonce")
    return made


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    connection.sendall(len(text).to_bytes(_LENGTH_BYTES, "big") + text)


def _await_answer(connection: socket.socket, answer_s: float) -> None:
    usual_s = connection.gettimeout()
    connection.settimeout(answer_s)
    connection.recv(1, socket.MSG_PEEK)
    connection.settimeout(usual_s)


def _receive(
    connection: socket.socket, limit: int, deadline: float | None = None
) -> dict[str, Any]:
    """deadline: of the whole message, on the monotonic clock; None is the connection's own time-out
    of each call."""
    size = int.from_bytes(_exactly(connection, _LENGTH_BYTES, deadline), "big")
    if size > limit:
        raise Damaged(f"a message of {size} bytes, {limit} are allowed")
    return _object(_exactly(connection, size, deadline))


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    whole = bytearray(size)
    fill(connection, memoryview(whole), deadline)
    return bytes(whole)


def fill(connection: socket.socket, into: memoryview, deadline: float | None = None) -> None:
    """Receives until `into` is full. deadline: see `_receive`. Raises CutOff, OSError."""
    filled = 0
    while filled < len(into):
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                raise CutOff(f"no more than {filled} of {len(into)} bytes came in time")
            connection.settimeout(left_s)
        count = connection.recv_into(into[filled:])
        if count == 0:
            raise CutOff(f"the connection ended after {filled} of {len(into)} bytes")
        filled += count


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Damaged("not a JSON object")
    return value


__all__ = ["Asked", "WeightTransportError", "ask", "fill"]
