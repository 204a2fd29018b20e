"""The evaluator's work on one execution: preserve the workspace, score it, say what came of it.

Order, because the process may be killed anywhere: the artifact lies in the blob store before a
scorer runs; the score is an event before it is anything else. A kill in between repeats the try on
the same artifact; the expected sequence lets one result in.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gyre.adapters.blobs import BlobError, BlobStore
from gyre.adapters.clock import Clock
from gyre.adapters.eventlog import SequenceConflict, Stream
from gyre.adapters.failpoints import failpoint
from gyre.adapters.journal import BodyLost, EventLost, Journal
from gyre.adapters.logging import bind, get_logger
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded
from gyre.contracts.events.scores import Evaluated, ExecutionExcluded, PlaceholderScored
from gyre.core.evaluation import CallSummary, Evaluate, Pending, Wait, decide, failed
from gyre.core.task_format import InvalidTask, checked_task_name
from gyre.evaluator.errors import ArtifactTooLarge, ScorerFailed
from gyre.evaluator.registry import Registry
from gyre.evaluator.scorer import Score, ScoreOrder, score
from gyre.evaluator.settings import EvaluatorSettings
from gyre.evaluator.snapshot import Limits, take_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One try. artifact: the digest it is bound to, "" while there is none."""

    state: Pending
    action: Evaluate

    @property
    def id(self) -> str:
        return f"{self.state.execution}-t{self.action.try_number}"


class Handler:
    """Decides and acts on one execution at a time; holds no state of its own."""

    def __init__(
        self,
        *,
        journal: Journal,
        blobs: BlobStore,
        clock: Clock,
        settings: EvaluatorSettings,
        registry: Registry,
    ) -> None:
        self._journal = journal
        self._blobs = blobs
        self._clock = clock
        self._settings = settings
        self._registry = registry

    async def handle(self, state: Pending) -> float:
        """Does what the execution asks for; seconds to wait before it asks again, 0 for nothing
        left to do here (what was appended comes back as a fact)."""
        with bind(job=state.job, execution=state.execution):
            calls = await self._calls(state)
            now = self._clock.now()
            action = decide(state, calls, self._registry.jobs[state.job].evaluation, now=now)
            match action:
                case Wait():
                    pass
                case Evaluate() if action.not_before > now:
                    return action.not_before - now
                case Evaluate():
                    await self._evaluate(Evaluation(state=state, action=action))
                case ExecutionExcluded() | PlaceholderScored():
                    await self._append(state, action)
            return 0.0

    async def _calls(self, state: Pending) -> CallSummary:
        """Committed calls up to the seal."""
        summary = CallSummary()
        if state.sealed is None or state.sealed.num_calls == 0:
            return summary
        subject = subjects.calls(state.job, state.execution)
        try:
            async for fact in self._journal.read(
                Stream.CALLS, (subject,), until=state.sealed.last_seq
            ):
                if isinstance(fact.body, CallRecorded):
                    summary = summary.with_call(fact.body)
        except EventLost as error:
            get_logger().error("calls_lost", error=str(error))
            return CallSummary(
                lost=f"blob {error.digest}" if isinstance(error, BodyLost) else str(error)
            )
        return summary

    async def _evaluate(self, evaluation: Evaluation) -> None:
        state, action = evaluation.state, evaluation.action
        artifact = ""
        try:
            data, artifact = await asyncio.to_thread(self._preserve, state, action)
            result = await score(self._order(evaluation, data))
        except ArtifactTooLarge as error:
            excluded = ExecutionExcluded(execution=state.execution, reason=str(error))
            await self._append(state, excluded)
            return
        except (ScorerFailed, BlobError, OSError, InvalidTask) as error:
            event = failed(
                state, action, evaluation=evaluation.id, artifact=artifact, error=str(error)
            )
            await self._append(state, event)
            return
        failpoint("evaluator.after_score")
        await self._append(state, _evaluated(evaluation, artifact, result))

    def _preserve(self, state: Pending, action: Evaluate) -> tuple[bytes, str]:
        """The artifact and its digest; a later try gets the very one that an earlier one had."""
        if state.artifact is not None:
            return self._blobs.get(state.artifact), state.artifact
        workspace = self._settings.workspaces_dir / action.workspace
        if not workspace.parent.is_dir():
            raise ScorerFailed(f"workspace {action.workspace}: is not on this machine")
        limits = Limits(
            max_bytes=self._settings.evaluator_max_artifact_bytes,
            max_entries=self._settings.evaluator_max_artifact_entries,
        )
        snapshot = take_snapshot(workspace, limits)
        if snapshot.num_skipped:
            get_logger().warning("workspace_entries_skipped", num_skipped=snapshot.num_skipped)
        return snapshot.data, self._blobs.put(snapshot.data)

    def _order(self, evaluation: Evaluation, artifact: bytes) -> ScoreOrder:
        state, action = evaluation.state, evaluation.action
        checked_task_name(state.task)
        scratch = self._settings.evaluations_dir / state.job / state.execution
        return ScoreOrder(
            artifact=artifact,
            task=self._registry.task_dir(state),
            scratch=scratch / f"t{action.try_number}",
            timeout_s=action.timeout_s,
            path=self._settings.scorer_path,
            max_file_bytes=self._settings.evaluator_max_file_bytes,
        )

    async def _append(self, state: Pending, body: Body) -> None:
        try:
            await self._journal.append(
                subjects.score(state.job, state.execution),
                body,
                job=state.job,
                cause=("evaluation", state.execution, state.num_tries + 1),
                expected=state.sequence,
            )
        except SequenceConflict as conflict:
            # A try of an earlier life of this service got in first: that one counts.
            get_logger().warning("score_superseded", type=body.TYPE, error=str(conflict))
            return
        get_logger().info(body.TYPE, **_log_fields(body))


def _evaluated(evaluation: Evaluation, artifact: str, result: Score) -> Evaluated:
    return Evaluated(
        execution=evaluation.state.execution,
        attempt=evaluation.action.attempt,
        evaluation=evaluation.id,
        artifact=artifact,
        branch=evaluation.action.branch,
        reward=result.reward.value,
        detail={
            "scorer": result.scorer,
            "try": evaluation.action.try_number,
            "seconds": round(result.seconds, 4),
            "exit_code": result.exit_code,
            "num_processes_left": result.num_processes_left,
            "rewards": dict(result.reward.parts),
        },
    )


def _log_fields(body: Body) -> dict[str, object]:
    return body.model_dump(include={"attempt", "reward", "reason", "error", "num_tries"})
