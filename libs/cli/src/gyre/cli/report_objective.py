"""The report's section on the objective: what each step's update was made of."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from gyre.adapters.blobs import BlobError, BlobStore
from gyre.cli.tables import html_table, last_and_odd, text_table
from gyre.contracts.events.steps import RATIO_EDGES, VersionMismatch
from gyre.contracts.step_record import StepRecord
from gyre.core.objective_report import ObjectiveReport, ObjectiveStep

TITLE = "Objective: what each step was made of"
# s: mean s_i of executions. m = 0: share of executions that the mask stops. clipped, w cap, l cap:
# shares of targets that mask or clip stops, and that the weight's and the loss's cap hold.
# mismatch: nats a target, mean |log pi - behaviour logprob|, by the version that sampled them.
COLUMNS = (
    *("step", "loss", "grad", "entropy", "s", "m = 0", "clipped", "w cap", "l cap"),
    *("mismatch", "applied"),
)
SPREAD = "Ratios of trainer to engine"
SPREAD_COLUMNS = ("ratio", "s_i: executions", "rho_u: targets")


def objective_table(report: ObjectiveReport) -> Table:
    """The last steps, and those that were not applied: of these the class of the reason, which
    the alarm says whole. Of a step's versions the one that is furthest off."""
    table = text_table(TITLE, COLUMNS, left=COLUMNS[-2:])
    for step in _shown(report):
        worst = sorted(step.statistics.mismatches, key=lambda one: one.mean_abs)[-1:]
        table.add_row(*_figures(step), _mismatch(step, worst), step.skip_class or "yes")
    return table


def objective_html(report: ObjectiveReport) -> str:
    """The same, and how the ratios lie; empty where no step was done."""
    if not report.steps:
        return ""
    summary = report.summary()
    counts = [
        (span, str(by_execution), str(by_token))
        for span, by_execution, by_token in zip(
            _spans(), summary["ratio_counts"], summary["token_ratio_counts"], strict=True
        )
        if by_execution or by_token
    ]
    rows = [
        (*_figures(step), _mismatch(step, step.statistics.mismatches), step.skip_reason or "yes")
        for step in _shown(report)
    ]
    page = html_table(TITLE, COLUMNS, rows)
    return page + html_table(SPREAD, SPREAD_COLUMNS, counts) if counts else page


def write_executions(report: ObjectiveReport, blobs: BlobStore, path: Path) -> tuple[int, int]:
    """One JSON line for each execution of each step, with s_i and m_i, as far as the steps' records
    are in `blobs`. Returns how many steps were written and how many have a record."""
    recorded = [step.record for step in report.steps if step.record is not None]
    num_written = 0
    with path.open("w", encoding="utf-8") as lines:
        for digest in recorded:
            try:
                record = StepRecord.model_validate_json(blobs.get(digest))
            except BlobError:
                continue
            num_written += 1
            for execution in record.executions:
                named = {"step": record.step, "version": record.version}
                lines.write(json.dumps(named | execution.model_dump()) + "\n")
    return num_written, len(recorded)


def mismatch_in_words(found: Sequence[VersionMismatch]) -> str:
    """`v3 0.012, v4 0.010`: mean |log pi - behaviour logprob| of each version's targets."""
    names = ("v?" if one.version is None else f"v{one.version}" for one in found)
    return ", ".join(f"{name} {one.mean_abs:.3g}" for name, one in zip(names, found, strict=True))


def _shown(report: ObjectiveReport) -> list[ObjectiveStep]:
    return last_and_odd(report.steps, lambda step: step.skip_reason != "")


def _mismatch(step: ObjectiveStep, found: Sequence[VersionMismatch]) -> str:
    """Over all versions together in logs that are older than the figures by version."""
    return mismatch_in_words(found) or f"{step.statistics.mean_abs_logprob_diff:.3g}"


def _figures(step: ObjectiveStep) -> tuple[str, ...]:
    one = step.statistics
    shares = one.clip_fraction, one.clipped_targets, one.weight_capped, one.loss_capped
    return (
        str(step.step),
        f"{one.loss:.4g}",
        f"{one.grad_norm:.3g}",
        f"{one.entropy:.3f}",
        f"{one.mean_ratio:.4f}",
        *(f"{share:.1%}" for share in shares),
    )


def _spans() -> list[str]:
    """In words, of the bins of RATIO_EDGES."""
    edges = [f"{edge:g}" for edge in RATIO_EDGES]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(edges)]
    return [f"below {edges[0]}", *between, f"{edges[-1]} and above"]
