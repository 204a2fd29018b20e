"""Errors of an engine's client; every failure of a call is one of these."""

from __future__ import annotations


class EngineError(Exception):
    """Root of what an engine client raises."""


class EngineUnreachableError(EngineError):
    """No answer: the process is not there, or the connection broke."""


class EngineTimeoutError(EngineError):
    """No answer within the call's deadline."""


class EngineRefusedError(EngineError):
    """The engine answered with an error status; `status` and `message` are its own."""

    def __init__(self, path: str, status: int, message: str) -> None:
        super().__init__(f"{path}: HTTP {status}: {message}")
        self.status = status
        self.message = message


class EngineProtocolError(EngineError):
    """An answer that does not have the contract's shape."""


class BadWeightsError(EngineError):
    """Weights that are not the model's: found out before any of them went to the engine."""


class WeightsDiffer(EngineError):
    """The engine loaded weights and says another checksum than theirs."""
