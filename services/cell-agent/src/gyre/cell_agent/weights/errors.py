"""Why weights could not be had, or not be served."""

from __future__ import annotations

from typing import ClassVar


class WeightTransportError(Exception):
    """Root. again: the same pull may succeed when it is made again at once."""

    again: ClassVar[bool] = False


class NobodyServes(WeightTransportError):
    """No connection: the core's trainer is gone, or the address is another's."""


class CutOff(WeightTransportError):
    """The connection ended, or was silent for too long, before all was there."""

    again = True


class Damaged(WeightTransportError):
    """Bytes that do not match their digests, or an answer that is none."""

    again = True


class WrongVersion(WeightTransportError):
    """Other weights are served than those asked for, or none."""


class NotTheJob(WeightTransportError):
    """One of the two sides does not hold the job's key."""


class PublicAddress(WeightTransportError):
    """Weights would be served where anybody may connect."""


class TransportMissing(WeightTransportError):
    """The transport's library is not there or does not start."""
