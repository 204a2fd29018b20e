"""The report's plots, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gyre.core.explain import StalenessReport
from gyre.core.report import RunReport

_ROLE_COLOURS = {
    "rollout": "#4c9f70",
    "training": "#3b6fb6",
    "switching": "#e0a030",
    "offline": "#bbbbbb",
}


def plots(report: RunReport) -> dict[str, str]:
    """Title -> SVG element."""
    return {
        "Reward by step": _svg(lambda axes: _reward(axes, report)),
        "Cell roles over time": _svg(lambda axes: _roles(axes, report), height=2.2),
        "Waterlevel against capacity": _svg(lambda axes: _waterlevel(axes, report)),
        "Staleness by group": _svg(lambda axes: _staleness(axes, report)),
        "Failures by class": _svg(lambda axes: _failures(axes, report), height=2.5),
    }


def _svg(draw: Callable[[Axes], None], height: float = 3.0) -> str:
    figure = Figure(figsize=(9, height), layout="constrained")
    draw(figure.subplots())
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _reward(axes: Axes, report: RunReport) -> None:
    rows = [(row.step + 1, row.reward) for row in report.steps if row.reward is not None]
    steps, rewards = [step for step, _ in rows], [reward for _, reward in rows]
    axes.plot(steps, list(rewards), marker="o", label="rollouts")
    for phase, place in (("heldout_before", 0), ("heldout_after", len(report.steps) + 1)):
        score = report.heldout(phase)
        if score is not None:
            rewards.append(score.mean)
            axes.errorbar([place], [score.mean], [score.error], fmt="s", capsize=4, label=phase)
    for place, (version, score) in enumerate(report.measurements()):
        rewards.append(score.mean)
        label = None if place else "held-out, while training"
        axes.errorbar(
            [version + 0.5], [score.mean], [score.error], fmt="D", color="k", capsize=4, label=label
        )
    lowest, highest = min([0.0, *rewards]), max([1.0, *rewards])
    axes.set(xlabel="optimizer step", ylabel="mean reward", ylim=(lowest, highest))
    axes.legend(loc="lower right", fontsize="small")


def _roles(axes: Axes, report: RunReport) -> None:
    origin, end = report.started_at or 0.0, report.ended_at or 0.0
    seen: set[str] = set()
    for cell in report.state.order:
        changes = [(time, role) for time, number, role in report.roles if number == cell]
        for place, (time, role) in enumerate(changes):
            until = changes[place + 1][0] if place + 1 < len(changes) else end
            label = role if role not in seen else None
            seen.add(role)
            colour = _ROLE_COLOURS.get(role, "#888888")
            axes.barh(cell, until - time, left=time - origin, color=colour, label=label)
    axes.set(xlabel="seconds", ylabel="cell", yticks=list(report.state.order))
    if seen:
        axes.legend(loc="upper right", fontsize="small", ncols=4)


def _waterlevel(axes: Axes, report: RunReport) -> None:
    origin = report.started_at or 0.0
    times = [time - origin for time, _, _ in report.waterlevel]
    axes.step(times, [w for _, w, _ in report.waterlevel], where="post", label="waterlevel w")
    axes.step(times, [c for _, _, c in report.waterlevel], where="post", label="capacity C_R")
    axes.set(xlabel="seconds", ylabel="executions", ylim=(0, None))
    axes.legend(loc="upper right", fontsize="small")


def _staleness(axes: Axes, report: RunReport) -> None:
    rows = report.staleness_by_group()
    summary = report.summary()
    axes.bar(range(len(rows)), [d for _, d in rows], width=0.8)
    axes.axhline(summary["expected_staleness"], linestyle="--", label="expected mean")
    if summary["mean_staleness"] is not None:
        axes.axhline(summary["mean_staleness"], label="mean")
    axes.set(xlabel="group, in order of dispatch", ylabel="v_t - v_d (steps)")
    axes.legend(loc="upper left", fontsize="small")


_PARTS = {
    "queued_s": ("queued", "#bbbbbb"),
    "running_s": ("running, slowest execution", "#4c9f70"),
    "scoring_s": ("scoring", "#e0a030"),
    "ready_s": ("ready, waiting to be drawn", "#3b6fb6"),
}


def save_staleness(report: StalenessReport, path: Path) -> None:
    """Draw where each group's time went, with its staleness above; the suffix is the format."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    places = range(len(report.rows))
    ds = [row.staleness for row in report.rows]
    above.plot(places, ds, ".", color="#444444", label="d = v_t - v_d")
    identity = f"phi + (mu - 1) / 2 = {report.expected:g}"
    above.axhline(report.expected, linestyle="--", color="#b05050", label=identity)
    if report.mean is not None:
        above.axhline(report.mean, color="#3b6fb6", label=f"mean {report.mean:.3f}")
    above.set(ylabel="steps", ylim=(-0.2, 1.0 + 1.4 * max(ds, default=0)))
    above.legend(loc="upper left", fontsize="small", ncols=3)
    bottom = [0.0 for _ in places]
    for part, (label, colour) in _PARTS.items():
        seconds = [getattr(row, part) for row in report.rows]
        below.bar(places, seconds, bottom=bottom, label=label, color=colour, width=0.9)
        bottom = [low + more for low, more in zip(bottom, seconds, strict=True)]
    below.set(xlabel="group, in order of dispatch", ylabel="seconds from dispatch to claim")
    below.set_ylim(0, 1.25 * max(bottom, default=1.0))
    below.legend(loc="upper left", fontsize="small", ncols=4)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _failures(axes: Axes, report: RunReport) -> None:
    rows = sorted(report.failures.items())
    if not rows:
        axes.text(0.5, 0.5, "none", ha="center", va="center")
        axes.set_axis_off()
        return
    axes.barh([name for name, _ in rows], [count for _, count in rows])
    axes.set(xlabel="count")
