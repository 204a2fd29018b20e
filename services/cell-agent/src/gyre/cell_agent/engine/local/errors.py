"""Errors of the local engine; the message is one line that a caller can act on."""

from __future__ import annotations


class LocalEngineError(Exception):
    """Root of everything the local engine raises on purpose."""


class BadRequestError(LocalEngineError):
    """A request the contract refuses; becomes HTTP 400 with `{"error": {"message"}}`."""


class UnknownParameterError(BadRequestError):
    """A key of `sampling_params` that is none; becomes HTTP 400 with `{"error": "..."}`."""


class SchemaError(LocalEngineError):
    """A body of the wrong shape; becomes HTTP 400 with `{"object": "error", ...}`."""


class UnavailableError(LocalEngineError):
    """The engine cannot serve now (memory released, shutting down); becomes HTTP 503."""


class ModelFilesError(LocalEngineError):
    """A model directory that cannot be served: missing, unreadable or another architecture."""


class WeightsError(LocalEngineError):
    """New weights that do not fit the model; the weights in service are unchanged."""


class GoneError(LocalEngineError):
    """A pinned prefix that is not there, or not any more; becomes HTTP 410."""


class UnauthorizedError(LocalEngineError):
    """The caller does not have the job's key; becomes HTTP 401."""


class TransferError(LocalEngineError):
    """Cached KV could not be copied from another engine; what had come by then is kept."""
