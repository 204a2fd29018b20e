"""gyre job submit, ls, show, cancel, pause, resume, drain, logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gyre.cli.client import ApiClient, connect
from gyre.cli.jobfile import load_job_file
from gyre.cli.options import DEFAULT_HOME, Home
from gyre.cli.progress import watch_job
from gyre.contracts.http import JobView

app = typer.Typer(help="Submit jobs and look at them.", no_args_is_help=True)
console = Console()


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="A job file (YAML).")],
    home: Home = DEFAULT_HOME,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until it ends.")] = False,
) -> None:
    """Submit a job; prints its id."""
    raw = load_job_file(file)
    with connect(home) as client:
        view = client.submit(raw)
        console.print(view.id, highlight=False)
        if wait and wait_for(client, view, raw, console).status != "succeeded":
            raise typer.Exit(1)


def wait_for(client: ApiClient, view: JobView, raw: dict[str, Any], console: Console) -> JobView:
    """Show the job's progress until it ends; says why when it did not succeed."""
    schedule = raw["schedule"]
    group = schedule.get("executions_started") or schedule.get("executions_per_group", 16)
    size = group * schedule.get("groups_per_step", 32)
    last = watch_job(lambda: client.job(view.id), console, size * view.num_steps)
    if last.status != "succeeded":
        console.print(f"{last.id} {last.status}: {last.reason}", highlight=False)
    return last


@app.command("ls")
def list_jobs(home: Home = DEFAULT_HOME) -> None:
    """List the jobs."""
    table = Table("job", "status", "phase", "step", "executions", "staleness")
    with connect(home) as client:
        views = client.jobs()
    for view in views:
        staleness = "" if view.mean_staleness is None else f"{view.mean_staleness:.2f}"
        table.add_row(
            view.id,
            _standing(view),
            view.phase,
            f"{view.num_steps_done}/{view.num_steps}",
            f"{view.num_terminated}/{view.num_dispatched}",
            staleness,
        )
    console.print(table)
    for view in views:
        if view.status == "running" and view.pause_reason:
            console.print(f"{view.id}: {view.pause_reason}", highlight=False)


def _standing(view: JobView) -> str:
    marks = [name for name, on in (("paused", view.paused), ("draining", view.draining)) if on]
    marks += [f"{view.num_lost_facts} facts lost"] if view.num_lost_facts else []
    if not marks or view.status != "running":
        return view.status
    return f"{view.status}, {' and '.join(marks)}"


@app.command()
def show(job: str, home: Home = DEFAULT_HOME) -> None:
    """Print a job's state as JSON."""
    with connect(home) as client:
        console.print_json(client.job(job).model_dump_json())


@app.command()
def cancel(job: str, home: Home = DEFAULT_HOME) -> None:
    """End a job: queued executions never start, running ones are stopped."""
    with connect(home) as client:
        view = client.cancel(job)
    console.print(f"{view.id}: {view.status}, cancellation requested", highlight=False)


@app.command()
def pause(job: str, home: Home = DEFAULT_HOME) -> None:
    """Begin nothing new: no execution, no transition, no step. What runs goes on."""
    with connect(home) as client:
        view = client.pause(job)
    console.print(f"{view.id}: {view.status}, paused", highlight=False)


@app.command()
def resume(job: str, home: Home = DEFAULT_HOME) -> None:
    """Let a paused job go on."""
    with connect(home) as client:
        view = client.resume(job)
    console.print(f"{view.id}: {view.status}, not paused", highlight=False)


@app.command()
def drain(job: str, home: Home = DEFAULT_HOME) -> None:
    """End a job after the burst it is in: its weights are published and measured, what is still
    queued or running then is cancelled."""
    with connect(home) as client:
        view = client.drain(job)
    console.print(f"{view.id}: {view.status}, draining", highlight=False)


@app.command()
def logs(
    job: str,
    home: Home = DEFAULT_HOME,
    after: Annotated[int, typer.Option(help="Stream sequence to start after.")] = 0,
) -> None:
    """Follow a job's facts as JSON lines until it ends."""
    with connect(home) as client:
        for line in client.events(job, after):
            typer.echo(line)
