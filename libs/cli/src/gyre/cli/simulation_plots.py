"""A simulated run's role timeline and waterlevel, one above the other."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gyre.cli.errors import CommandError
from gyre.simulator.outcome import Outcome

_COLOURS = {"rollout": "#4c9f70", "training": "#3b6fb6", "switching": "#e0a030"}
_FORMATS = (".svg", ".png", ".pdf")


def checked_plot(path: Path) -> Path:
    """Raises CommandError before hours are simulated for a file that cannot be written."""
    if path.suffix not in _FORMATS:
        raise CommandError(f"{path}: the name of a plot ends with {', '.join(_FORMATS)}")
    if not path.resolve().parent.is_dir():
        raise CommandError(f"{path}: no such directory; make it first")
    return path


def plot(runs: dict[str, Outcome], path: Path) -> None:
    """runs: by name, each in a column of its own."""
    figure = Figure(figsize=(7 * len(runs), 6), layout="constrained")
    axes = figure.subplots(2, len(runs), squeeze=False)
    for column, (name, outcome) in enumerate(runs.items()):
        _roles(axes[0][column], outcome)
        _waterlevel(axes[1][column], outcome)
        axes[0][column].set_title(f"{name}: {outcome.end_s / 3600:.2f} h")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _roles(axes: Axes, outcome: Outcome) -> None:
    cells = sorted({cell for _, cell, _ in outcome.roles})
    seen: set[str] = set()
    for cell in cells:
        changes = [(time, role) for time, number, role in outcome.roles if number == cell]
        for (time, role), (until, _) in zip(
            changes, (*changes[1:], (outcome.end_s, "")), strict=True
        ):
            label = role if role not in seen else None
            seen.add(role)
            axes.barh(
                cell,
                (until - time) / 3600,
                left=time / 3600,
                color=_COLOURS.get(role, "#888888"),
                label=label,
            )
    for end in outcome.step_ended_s:
        axes.axvline(end / 3600, color="#00000033", linewidth=0.8)
    axes.set(
        xlabel="hours (lines: steps)", ylabel="cell", yticks=cells, xlim=(0, outcome.end_s / 3600)
    )
    axes.legend(loc="upper right", fontsize="small", ncols=3)


def _waterlevel(axes: Axes, outcome: Outcome) -> None:
    hours = [time / 3600 for time, _, _ in outcome.waterlevel]
    axes.step(hours, [w for _, w, _ in outcome.waterlevel], where="post", label="waterlevel w")
    axes.step(hours, [c for _, _, c in outcome.waterlevel], where="post", label="capacity C_R")
    axes.set(xlabel="hours", ylabel="executions", ylim=(0, None), xlim=(0, outcome.end_s / 3600))
    axes.legend(loc="upper right", fontsize="small")
