"""How far the trainer's log-probabilities are from those that the engines recorded, as sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gyre.contracts.events.steps import VersionMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Over targets sampled under one policy version; None: of targets whose version is not known.

    abs_sum: of |log pi - behaviour logprob|, nats. kl_sum: of rho - 1 - log rho, whose mean
    estimates KL(behaviour || trainer). Sums, so that those of parts, of cells and of steps add up.
    """

    version: int | None
    num_targets: int
    abs_sum: float
    kl_sum: float
    max_abs: float

    @property
    def mean_abs(self) -> float:
        return self.abs_sum / max(self.num_targets, 1)

    @property
    def mean_kl(self) -> float:
        return self.kl_sum / max(self.num_targets, 1)

    def plus(self, other: Mismatch) -> Mismatch:
        """Of the same version."""
        return Mismatch(
            version=self.version,
            num_targets=self.num_targets + other.num_targets,
            abs_sum=self.abs_sum + other.abs_sum,
            kl_sum=self.kl_sum + other.kl_sum,
            max_abs=max(self.max_abs, other.max_abs),
        )

    def as_event(self) -> VersionMismatch:
        """As the log has it: means in place of sums."""
        return VersionMismatch(
            version=self.version,
            num_targets=self.num_targets,
            mean_abs=self.mean_abs,
            max_abs=self.max_abs,
            mean_kl=self.mean_kl,
        )


def of_event(said: VersionMismatch) -> Mismatch:
    return Mismatch(
        version=said.version,
        num_targets=said.num_targets,
        abs_sum=said.mean_abs * said.num_targets,
        kl_sum=said.mean_kl * said.num_targets,
        max_abs=said.max_abs,
    )


def merged(found: Iterable[Mismatch]) -> tuple[Mismatch, ...]:
    """One a version, ascending, that of targets whose version is not known last."""
    by_version: dict[int | None, Mismatch] = {}
    for one in found:
        seen = by_version.get(one.version)
        by_version[one.version] = one if seen is None else seen.plus(one)
    return tuple(sorted(by_version.values(), key=lambda m: (m.version is None, m.version or 0)))
