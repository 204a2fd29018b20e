"""gyre demo: the quickstart from nothing to a report, in one command."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gyre.cli.client import connect, nats_url
from gyre.cli.errors import CommandError
from gyre.cli.job_commands import wait_for
from gyre.cli.jobfile import load_job_file
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.policy_schedules import set_policy
from gyre.cli.report_files import summary_table, write_report
from gyre.cli.runs import read_report
from gyre.cli.stack_commands import start_stack
from gyre.embedded import control

console = Console()
WARM_START_TIMEOUT_S = 1800
OUT = Path("out")


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    home: Home = DEFAULT_HOME,
    example: Annotated[Path, typer.Option(help="The example's directory.")] = Path(
        "examples/quickstart"
    ),
    out: Annotated[
        Path | None,
        typer.Option(help="Where the report goes.", show_default="out/EXAMPLE[-POLICY]"),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="One of the example's policies.yaml, not the job's own.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the warm start and of the job.")] = 1,
    lr: Annotated[float | None, typer.Option(help="Override the learning rate.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running.")] = False,
) -> None:
    """Warm-start a tiny policy, train it inside an agent program, evaluate, report, stop."""
    raw = load_job_file(example / "job.yaml")
    if policy is not None:
        set_policy(raw, example, policy)
    if out is None:
        out = OUT / (example.name if policy in (None, "gyre") else f"{example.name}-{policy}")
    assets = prepare(example, seed)
    _point_at(raw, assets, seed, lr)
    started = time.monotonic()
    try:
        cells = raw["cells"]["count"] + raw["cells"].get("pool_count", 0)
        start_stack(home=home, cells=cells, console=console)
        ok = _run(home, raw, out)
    finally:
        if not keep:
            control.down(home)
    console.print(f"{time.monotonic() - started:.0f} s after set-up", highlight=False)
    if not ok:
        raise typer.Exit(1)


def prepare(example: Path, seed: int) -> Path:
    """Tasks and the warm-started model, made once for each seed; returns their directory."""
    assets = OUT / example.name / f"seed-{seed}"
    for script, target in (("tasks.py", assets / "tasks"), ("warmstart.py", assets / "model")):
        path = example / script
        if not path.is_file():
            raise CommandError(f"{path}: no such file; run from the checkout or give --example")
        console.print(f"{script.removesuffix('.py')} (seed {seed})", highlight=False)
        command = [sys.executable, str(path), "--out", str(target), "--seed", str(seed)]
        finished = subprocess.run(command, timeout=WARM_START_TIMEOUT_S, check=False)
        if finished.returncode != 0:
            raise CommandError(f"{path} ended with exit status {finished.returncode}")
    return assets.resolve()


def _run(home: Path, raw: dict[str, Any], out: Path) -> bool:
    with connect(home) as client:
        view = client.submit(raw)
        console.print(f"job {view.id}", highlight=False)
        last = wait_for(client, view, raw, console)
    report = asyncio.run(read_report(nats_url(home), view.id, home))
    write_report(report, out)
    console.print(summary_table(report))
    console.print(f"report: {out / 'report.html'}", highlight=False)
    return last.status == "succeeded"


def _point_at(raw: dict[str, Any], assets: Path, seed: int, lr: float | None) -> None:
    raw["seed"] = seed
    raw["model"]["path"] = str(assets / "model")
    raw["tasks"] = {
        "train": str(assets / "tasks" / "train"),
        "heldout": str(assets / "tasks" / "heldout"),
    }
    if lr is not None:
        raw.setdefault("optimizer", {})["lr"] = lr
