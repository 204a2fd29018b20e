"""One job under each policy, one after another on the same emulated cells, and what came of it.

    python examples/policies/compare.py [--home .gyre] [--out out/policies] [--only NAME ...]

Prints `gyre compare` of the runs, then each total beside the simulator's prediction, and how the
elastic policy's total stands to the better baseline's. Emulated speeds hold only while the machine
has time to spare: run it with nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predict import predicted_total_s
from rich.console import Console

from gyre.cli.client import connect, nats_url
from gyre.cli.errors import CommandError
from gyre.cli.job_commands import wait_for
from gyre.cli.jobfile import load_job_file
from gyre.cli.policy_schedules import read_schedules, set_policy
from gyre.cli.report_files import write_report
from gyre.cli.runs import read_report
from gyre.cli.stack_commands import start_stack
from gyre.core.report import RunReport
from gyre.embedded import control

HERE = Path(__file__).resolve().parent
ELASTIC = "gyre"
COMMAND_TIMEOUT_S = 300
GYRE = Path(sys.executable).with_name("gyre")
console = Console()


def job_of(assets: Path, policy: str) -> dict[str, Any]:
    """The example's job under a policy, its paths filled in."""
    raw = load_job_file(HERE / "job.yaml")
    set_policy(raw, HERE, policy)
    raw["name"] = f"{raw['name']}-{policy}"
    raw["model"]["path"] = str(assets / "model")
    raw["tasks"]["train"] = str(assets / "tasks")
    settings = raw["harness"]["settings"]
    places = {"{python}": sys.executable, "{agent}": str(HERE / "agent.py")}
    settings["argv"] = [places.get(word, word) for word in settings["argv"]]
    return raw


def run(home: Path, assets: Path, policies: Sequence[str]) -> dict[str, str]:
    """Each policy's finished job, in the order given."""
    jobs = {}
    for policy in policies:
        raw = job_of(assets, policy)
        with connect(home) as client:
            view = client.submit(raw)
            console.print(f"{policy}: job {view.id}, load {os.getloadavg()[0]:.1f}")
            last = wait_for(client, view, raw, console)
        if last.status != "succeeded":
            raise CommandError(f"{view.id} {last.status}: {last.reason}")
        jobs[policy] = view.id
    return jobs


def reported(home: Path, out: Path, jobs: dict[str, str]) -> dict[str, RunReport]:
    """Reads each run back from the log and writes its report."""
    reports = {}
    for policy, job in jobs.items():
        reports[policy] = asyncio.run(read_report(nats_url(home), job, home))
        write_report(reports[policy], out / policy)
    return reports


def compared(home: Path, jobs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Prints `gyre compare` of the runs; returns its figures by job."""
    command = [str(GYRE), "compare", *jobs, "--home", str(home)]
    subprocess.run(command, check=True, timeout=COMMAND_TIMEOUT_S)
    told = subprocess.run(
        [*command, "--json"], check=True, timeout=COMMAND_TIMEOUT_S, capture_output=True
    )
    return {row["job"]: row for row in json.loads(told.stdout)}


def summarize(
    reports: dict[str, RunReport], times: dict[str, dict[str, Any]], assets: Path
) -> dict[str, Any]:
    """By policy: seconds from the first dispatch to the last publication, measured and predicted,
    and what both rest on."""
    turns = json.loads((assets / "turns.json").read_text(encoding="utf-8"))
    rows = {}
    for policy, report in reports.items():
        spec = report.state.required_spec
        rows[policy] = {
            "total_s": times[report.job]["training_s"],
            "predicted_s": predicted_total_s(spec, turns),
            "mean_staleness": report.summary()["mean_staleness"],
            "emulation": report.summary()["emulation"],
        }
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, default=Path(".gyre"))
    parser.add_argument("--out", type=Path, default=Path("out/policies"))
    parser.add_argument("--only", nargs="*", help="these policies of policies.yaml")
    options = parser.parse_args(arguments)
    policies = options.only or list(read_schedules(HERE))
    assets = options.out.resolve()
    prepare = [sys.executable, str(HERE / "prepare.py"), "--out", str(assets)]
    subprocess.run(prepare, check=True, timeout=COMMAND_TIMEOUT_S)
    try:
        start_stack(home=options.home, cells=4, console=console)
        jobs = run(options.home, assets, policies)
        reports = reported(options.home, options.out, jobs)
        times = compared(options.home, list(jobs.values()))
    finally:
        control.down(options.home)
    rows = summarize(reports, times, assets)
    (options.out / "comparison.json").write_text(json.dumps(rows, indent=2) + "\n")
    for policy, row in rows.items():
        error = row["predicted_s"] / row["total_s"] - 1
        console.print(
            f"{policy:10} {row['total_s']:7.1f} s, predicted {row['predicted_s']:7.1f} s "
            f"({error:+.1%}), mean staleness {row['mean_staleness']:.2f}"
        )
    baselines = [row["total_s"] for policy, row in rows.items() if policy != ELASTIC]
    if ELASTIC in rows and baselines:
        ratio = rows[ELASTIC]["total_s"] / min(baselines)
        console.print(f"{ELASTIC} over the better baseline: {ratio:.3f}")


if __name__ == "__main__":
    try:
        main()
    except CommandError as error:
        sys.exit(f"error: {error}")
