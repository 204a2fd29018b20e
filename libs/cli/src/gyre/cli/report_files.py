"""Writes a run's report: report.json for programs, report.html for people."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from gyre.cli.report_delivery import delivery_html
from gyre.cli.report_objective import mismatch_in_words, objective_html
from gyre.cli.report_switches import switches_html
from gyre.cli.tables import html_table
from gyre.core.report import RunReport, Score

# Keys of the summary that have a section of their own in the page.
SECTIONS = (
    *("delivery_by_step", "quarantined", "lost_facts"),
    *("objective_by_step", "mismatch_by_version"),
    *("ratio_edges", "ratio_counts", "token_ratio_counts"),
)
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;"
    "text-align:left}svg{max-width:100%;height:auto}"
)


def write_report(report: RunReport, directory: Path) -> dict[str, Any]:
    """Write both files below `directory`; returns the summary."""
    directory.mkdir(parents=True, exist_ok=True)
    summary = report.summary()
    (directory / "report.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    (directory / "report.html").write_text(_page(report, summary), encoding="utf-8")
    return summary


def summary_table(report: RunReport) -> Table:
    """The run's outcome for a terminal: held-out reward with its error, then the counts."""
    summary = report.summary()
    table = Table(title=f"job {report.job}: {summary['status']}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, phase in (("before", "heldout_before"), ("after", "heldout_after")):
        table.add_row(f"held-out reward {name}", _score(report.heldout(phase)))
    for version, score in report.measurements():
        table.add_row(f"held-out reward at version {version}", _score(score))
    for key in (
        *("steps", "executions", "calls", "calls_rerouted", "calls_failed"),
        *("malformed_tool_calls", "forks", "unexplained_forks", "role_changes"),
        *("cells_that_trained", "mean_staleness", "expected_staleness"),
        *("sampled_tokens", "trained_tokens", "delivered_share"),
        *("tokens_forwarded", "tokens_saved", "clip_low", "clip_high", "wall_s"),
    ):
        table.add_row(key.replace("_", " "), _value(summary[key]))
    if (idle := summary["trainer_idle_share"]) is not None:
        table.add_row("trainers idle, of their time in batches", f"{idle:.1%}")
    fractions = summary["clip_fraction"]
    if fractions:
        mean = sum(fractions) / len(fractions)
        table.add_row("clip fraction, mean and last", f"{mean:.3f}, {fractions[-1]:.3f}")
    if report.objective.skipped:
        table.add_row("steps not applied", str(summary["steps_skipped"]))
    if mismatches := report.objective.mismatches():
        table.add_row("mismatch, last versions", mismatch_in_words(mismatches[-3:]))
    if summary["num_surplus"]:
        table.add_row("surplus executions, mean length", selection_in_words(summary))
    if summary["num_groups_dropped"]:
        table.add_row("groups dropped as stale, mean length", dropped_in_words(summary))
    if summary["num_groups_equal"] or summary["num_groups_unscored"]:
        table.add_row("groups of zero weight", zero_weight_in_words(summary))
    if summary["emulation"]:
        table.add_row("emulated speeds", emulation_in_words(summary["emulation"]))
    return table


def selection_in_words(summary: Mapping[str, Any]) -> str:
    """How far the kept N of N' differ in length from all that were started: the bias of `keep`."""
    kept, started = (_seconds(summary[f"{name}_duration_s"]) for name in ("kept", "started"))
    return f"{summary['num_surplus']}; {kept} kept, {started} all that started"


def dropped_in_words(summary: Mapping[str, Any]) -> str:
    """Dropped groups and how long their executions had run, beside those that were kept."""
    dropped, kept = (_seconds(summary[f"{name}_duration_s"]) for name in ("dropped", "kept"))
    return f"{summary['num_groups_dropped']}; {dropped} dropped, {kept} kept"


def zero_weight_in_words(summary: Mapping[str, Any]) -> str:
    """Groups that counted as one of a step's B and trained nothing, and why."""
    equal, unscored = summary["num_groups_equal"], summary["num_groups_unscored"]
    why = [f"{equal} of equal rewards"] if equal else []
    if unscored:
        why.append(f"{unscored} with fewer than two valid rewards")
    return f"{equal + unscored} of {summary['num_groups_drawn']}: {', '.join(why)}"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f} s"


def emulation_in_words(speeds: Mapping[str, Sequence[float | None]]) -> str:
    """The summary's `emulation`: decode 20, training 900 tokens/s; several numbers where cells
    differ, core first."""
    words = []
    for name, values in speeds.items():
        each = ["machine" if value is None else f"{value:g}" for value in values]
        speed = each[0] if len(set(each)) == 1 else " ".join(each)
        words.append(f"{name.removesuffix('_tokens_per_s')} {speed}")
    return ", ".join(words) + " tokens/s"


def _score(score: Score | None) -> str:
    if score is None:
        return "not measured"
    excluded = f", {score.num_excluded} excluded" if score.num_excluded else ""
    return f"{score.mean:.3f} ± {score.error:.3f} ({score.num} tasks{excluded})"


def _value(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _page(report: RunReport, summary: dict[str, Any]) -> str:
    from gyre.cli.plots import plots

    rows = "".join(
        f"<tr><td>{html.escape(key)}</td><td>{html.escape(_value(value))}</td></tr>"
        for key, value in summary.items()
        if key not in ("switches", *SECTIONS)
    )
    figures = "".join(f"<h2>{html.escape(title)}</h2>{svg}" for title, svg in plots(report).items())
    title = html.escape(f"Gyre run {report.job}")
    speeds = summary["emulation"]
    emulated = f"<p>Emulated speeds: {emulation_in_words(speeds)}.</p>" if speeds else ""
    objective = objective_html(report.objective)
    delivered = delivery_html(report.deliveries)
    sections = (
        f"{emulated}{_measured(report)}{delivered}{objective}{switches_html(report)}{figures}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>Held-out reward before: "
        f"{html.escape(_score(report.heldout('heldout_before')))}, after: "
        f"{html.escape(_score(report.heldout('heldout_after')))} (standard error of the mean).</p>"
        f"{sections}<h2>Figures</h2><table>{rows}</table></body></html>\n"
    )


def _measured(report: RunReport) -> str:
    """The held-out set's reward under each version that was measured while the job trained."""
    rows = [(str(version), _score(score)) for version, score in report.measurements()]
    if not rows:
        return ""
    return html_table("Held-out reward while training", ("version", "mean reward"), rows)
