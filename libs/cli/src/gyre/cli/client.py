"""The scheduler's REST API, as the command line uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from gyre.cli.errors import CommandError
from gyre.contracts.http import ClusterCellList, ClusterCellView, JobList, JobView
from gyre.embedded.control import attach

TIMEOUT_S = 30.0

ViewT = TypeVar("ViewT", bound=BaseModel)


class ApiClient:
    """Calls of one scheduler, as a context manager. Raises CommandError for every refusal and
    every silence."""

    def __init__(self, base_url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        try:
            self._http = httpx.Client(base_url=base_url, headers=headers, timeout=TIMEOUT_S)
        except httpx.InvalidURL as error:
            raise CommandError(f"{base_url!r} is no URL of a scheduler: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, raw: dict[str, Any]) -> JobView:
        return self._call(JobView, "POST", "/v1/jobs", raw)

    def jobs(self) -> list[JobView]:
        return self._call(JobList, "GET", "/v1/jobs").jobs

    def job(self, job: str) -> JobView:
        return self._call(JobView, "GET", f"/v1/jobs/{job}")

    def cancel(self, job: str) -> JobView:
        return self._call(JobView, "POST", f"/v1/jobs/{job}/cancel")

    def pause(self, job: str) -> JobView:
        return self._call(JobView, "POST", f"/v1/jobs/{job}/pause")

    def resume(self, job: str) -> JobView:
        return self._call(JobView, "POST", f"/v1/jobs/{job}/resume")

    def drain(self, job: str) -> JobView:
        return self._call(JobView, "POST", f"/v1/jobs/{job}/drain")

    def cells(self) -> list[ClusterCellView]:
        return self._call(ClusterCellList, "GET", "/v1/cells").cells

    def release(self, job: str, cell: int) -> ClusterCellView:
        return self._call(ClusterCellView, "POST", f"/v1/jobs/{job}/cells/{cell}/release")

    def events(self, job: str, after: int = 0) -> Iterator[str]:
        """The job's facts as JSON lines, until it finishes."""
        try:
            with self._http.stream(
                "GET", f"/v1/jobs/{job}/events", params={"after": after}, timeout=None
            ) as response:
                if response.status_code >= 400:
                    response.read()
                    raise CommandError(_refusal(response))
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        yield line.removeprefix("data: ")
        except httpx.TransportError as error:
            raise CommandError(f"the scheduler went away: {error}") from error

    def _call(self, view: type[ViewT], method: str, path: str, body: object = None) -> ViewT:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise CommandError(
                f"no scheduler at {self._http.base_url}: start one with `gyre up` ({error})"
            ) from error
        if response.status_code >= 400:
            raise CommandError(_refusal(response))
        try:
            return view.model_validate_json(response.content)
        except ValidationError as error:
            raise CommandError(f"{self._http.base_url} is no scheduler of this release") from error


def _refusal(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}: {response.text.strip()[:200]}"


def connect(home: Path) -> ApiClient:
    """The scheduler named by GYRE_SCHEDULER_URL and GYRE_API_TOKEN, else the stack in `home`."""
    url, token = os.environ.get("GYRE_SCHEDULER_URL"), os.environ.get("GYRE_API_TOKEN")
    if url:
        if not token:
            raise CommandError("GYRE_SCHEDULER_URL is set, GYRE_API_TOKEN is not: set both")
        return ApiClient(url, token)
    return ApiClient(*_stack_api(home, token))


def nats_url(home: Path) -> str:
    """GYRE_NATS_URL, else the NATS server of the stack in `home`."""
    outside = os.environ.get("GYRE_NATS_URL")
    if outside:
        return outside
    info = attach(home)
    if info is None:
        raise CommandError(f"no stack runs in {home}: start one with `gyre up`")
    return info.urls["nats"]


def _stack_api(home: Path, token: str | None) -> tuple[str, str]:
    info = attach(home)
    if info is None:
        raise CommandError(f"no stack runs in {home}: start one with `gyre up`")
    return info.urls["scheduler"], token or info.token
