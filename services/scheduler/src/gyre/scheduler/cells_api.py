"""The REST API of cells: who is where, and asking one back from its job."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from gyre.adapters.journal import Journal
from gyre.contracts.events import requests as request_events
from gyre.contracts.http import ClusterCellList, ClusterCellView
from gyre.core.scheduling.state import JobState
from gyre.scheduler.loop import SchedulerLoop
from gyre.scheduler.requests import JobRequest, append_request


class Refused(Exception):
    """A request that cannot be granted. status: the HTTP status. field: what of it is at fault."""

    def __init__(self, status: int, field: str, message: str) -> None:
        super().__init__(message)
        self.status, self.field = status, field


def answer_cells(app: FastAPI, loop: SchedulerLoop, journal: Journal) -> None:
    """Adds GET /v1/cells and POST /v1/jobs/{job}/cells/{cell}/release; the latter may be repeated,
    and is granted when the cell trains nothing (`rules.members.release`)."""

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        body = {"error": {"field": error.field, "message": str(error)}}
        return JSONResponse(body, status_code=error.status)

    @app.get("/v1/cells")
    async def list_cells() -> ClusterCellList:
        silent = loop.silent_cells()
        return ClusterCellList(
            cells=[_cell_view(loop, cell, cell not in silent) for cell in sorted(loop.state.online)]
        )

    @app.post("/v1/jobs/{job}/cells/{cell}/release", status_code=202)
    async def release(job: str, cell: int) -> ClusterCellView:
        state = loop.state.jobs.get(job)
        if state is None:
            raise Refused(404, "job", f"no job {job!r}; `gyre job ls` lists the jobs")
        check_release(state, cell)
        await append_request(loop, journal, job, _release(cell))
        return _cell_view(loop, cell, cell not in loop.silent_cells())


def check_release(job: JobState, cell: int) -> None:
    """Raises Refused when the job can never let the cell go."""
    if job.status != "running":
        raise Refused(409, "job", f"job {job.job} is not running, it is {job.status}")
    known = job.present(cell)
    if known is None:
        if cell in job.released:
            return
        raise Refused(404, "cell", f"cell {cell} is none of job {job.job}'s cells")
    going = {number for number in job.released if job.present(number) is not None} | {cell}
    left = [number for number in job.order if number not in going]
    if not left:
        raise Refused(
            409, "cell", f"cell {cell} is the last that job {job.job} can train on; cancel the job"
        )
    fixed = job.required_spec.schedule.training_cells or 0
    serving = len(left) + sum(number not in going for number in job.pool)
    if serving <= fixed:
        raise Refused(
            409,
            "cell",
            f"without cell {cell} policy async would keep all of job {job.job}'s cells in training",
        )


def _release(cell: int) -> JobRequest:
    return JobRequest(
        name=f"release-{cell}",
        body=lambda now: request_events.ReleaseRequested(cell=cell),
        stands=lambda job: job.finished or cell in job.released,
    )


def _cell_view(loop: SchedulerLoop, cell: int, heard: bool) -> ClusterCellView:
    for job in loop.state.jobs.values():
        known = job.cells.get(cell)
        if known is not None and known.role != "offline":
            return ClusterCellView(
                cell=cell,
                job=job.job,
                role=known.role,
                leaving=cell in job.released or known.gone or job.finished,
                num_executions=len(known.executions),
                heard=heard,
            )
    return ClusterCellView(
        cell=cell, job=None, role="free", leaving=False, num_executions=0, heard=heard
    )
