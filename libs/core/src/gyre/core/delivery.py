"""Did what admission chose arrive at the trainers, and what did sharing prefixes save? By step,
from the facts alone: `stream_closed` says what was chosen, `step_completed` what was trained.

All targets that admission chose have to be trained: the delivered share of a step is 1, or targets
were lost between the tree and the gradient, which alarms. A step whose update was not applied has
no share and is in no sum; it alarms with its reason (`gyre.core.objective_report`). An execution in
quarantine has no targets to choose; it is told with its reason. So is each fact of the job that
cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import ExecutionQuarantined, StreamClosed
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.steps import StepCompleted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDelivery:
    """One completed step. num_chosen: targets of admission; num_delivered: as the trainers counted
    them, trained unless the step is skipped: its update was not applied. num_path_tokens: of the
    admitted paths laid flat; num_computed_tokens: of their trees, each shared prefix once;
    num_forwarded_tokens: through the model, twice what took two passes. None where an older release
    did not say."""

    step: int
    version: int
    num_chosen: int
    num_delivered: int
    num_paths_too_long: int
    num_path_tokens: int | None
    num_computed_tokens: int | None
    num_forwarded_tokens: int | None
    skipped: bool = False

    @property
    def is_short(self) -> bool:
        """Targets were lost on the way."""
        return self.num_delivered != self.num_chosen and not self.skipped

    @property
    def delivered_share(self) -> float | None:
        """1 where there was nothing to deliver, None where the update was not applied."""
        if self.skipped:
            return None
        return self.num_delivered / self.num_chosen if self.num_chosen else 1.0

    @property
    def num_saved_tokens(self) -> int | None:
        """What would have been computed again without sharing."""
        if self.num_path_tokens is None or self.num_computed_tokens is None:
            return None
        return self.num_path_tokens - self.num_computed_tokens


@dataclass(slots=True)
class Deliveries:
    """Mutated by `fold`, `complete` and `restore` alone. quarantined, lost_facts: in the order of
    the log."""

    steps: list[StepDelivery] = field(default_factory=list)
    quarantined: list[ExecutionQuarantined] = field(default_factory=list)
    lost_facts: list[FactLost] = field(default_factory=list)
    _closed: dict[str, StreamClosed] = field(default_factory=dict)

    def fold(self, body: Body) -> None:
        match body:
            case StreamClosed():
                self._closed[body.batch] = body
            case ExecutionQuarantined():
                self.quarantined.append(body)
            case FactLost():
                self.lost_facts.append(body)
            case _:
                pass

    def complete(self, body: StepCompleted) -> None:
        """A step that counts."""
        closed = self._closed.pop(body.batch, None)
        if closed is None:
            return
        trained = body.statistics
        said = trained.num_path_tokens > 0 or trained.num_targets == 0
        self.steps.append(
            StepDelivery(
                step=body.step,
                version=body.version,
                num_chosen=closed.num_admitted_targets or closed.num_targets,
                num_delivered=trained.num_targets,
                num_paths_too_long=closed.num_paths_too_long,
                num_path_tokens=trained.num_path_tokens if said else None,
                num_computed_tokens=trained.num_computed_tokens if said else None,
                num_forwarded_tokens=trained.num_forwarded_tokens if said else None,
                skipped=body.skipped,
            )
        )

    def restore(self, version: int) -> None:
        """What came after that version is void."""
        self.steps = [step for step in self.steps if step.version <= version]

    @property
    def total(self) -> StepDelivery | None:
        """Of all steps that were applied; None before the first."""
        applied = [step for step in self.steps if not step.skipped]
        if not applied:
            return None
        last = applied[-1]
        return StepDelivery(
            step=last.step,
            version=last.version,
            num_chosen=sum(step.num_chosen for step in applied),
            num_delivered=sum(step.num_delivered for step in applied),
            num_paths_too_long=sum(step.num_paths_too_long for step in applied),
            num_path_tokens=_sum(step.num_path_tokens for step in applied),
            num_computed_tokens=_sum(step.num_computed_tokens for step in applied),
            num_forwarded_tokens=_sum(step.num_forwarded_tokens for step in applied),
        )

    def alarms(self) -> tuple[str, ...]:
        """One line a step that was not delivered whole, one for all that is in quarantine, one for
        all facts that are lost."""
        lines = [
            f"step {step.step}: {step.num_delivered} of the {step.num_chosen} targets that "
            f"admission chose were trained ({step.delivered_share:.2%}, must be 100 %)"
            for step in self.steps
            if step.is_short
        ]
        if self.quarantined:
            first = self.quarantined[0]
            lines.append(
                f"{len(self.quarantined)} executions are in quarantine, their records cannot be "
                f"trained; the first, {first.execution}: {first.error}"
            )
        if self.lost_facts:
            num, lost = len(self.lost_facts), self.lost_facts[0]
            lines.append(f"{num} facts of the job cannot be read; the first, {lost.error}")
        return tuple(lines)

    def summary(self) -> dict[str, Any]:
        """Its keys of report.json."""
        total = self.total
        return {
            "delivered_share": total.delivered_share if total else None,
            "tokens_forwarded": total.num_forwarded_tokens if total else None,
            "tokens_saved": total.num_saved_tokens if total else None,
            "delivery_by_step": [_as_json(step) for step in self.steps],
            "quarantined": [one.model_dump() for one in self.quarantined],
            "lost_facts": [one.model_dump() for one in self.lost_facts],
        }


def _sum(values: Iterable[int | None]) -> int | None:
    """Of the steps that said it; None when none did."""
    said = [value for value in values if value is not None]
    return sum(said) if said else None


def _as_json(step: StepDelivery) -> dict[str, Any]:
    return {
        "step": step.step,
        "version": step.version,
        "targets": step.num_chosen,
        "delivered": step.num_delivered,
        "applied": not step.skipped,
        "delivered_share": step.delivered_share,
        "paths_too_long": step.num_paths_too_long,
        "path_tokens": step.num_path_tokens,
        "tokens_computed": step.num_computed_tokens,
        "tokens_forwarded": step.num_forwarded_tokens,
        "tokens_saved": step.num_saved_tokens,
    }
