"""Job specs for tests: small, valid, every number adjustable."""

from __future__ import annotations

from typing import Any

from gyre.contracts.job import JobSpec


def job_spec(
    *,
    cells: int = 3,
    capacity: int = 8,
    pool_count: int = 0,
    pool_capacity: int = 0,
    heldout: bool = True,
    sections: dict[str, Any] | None = None,
    **schedule: Any,
) -> JobSpec:
    """The quickstart's schedule unless `schedule` says otherwise; `sections` replaces whole."""
    numbers: dict[str, Any] = {
        "executions_per_group": 8,
        "groups_per_step": 6,
        "phi": 0.5,
        "mu": 2,
        "num_steps": 12,
        "rho_min": 1 / 3,
        "tau_s": 0.5,
    }
    raw: dict[str, Any] = {
        "name": "job",
        "model": {"path": "/model"},
        "harness": {"profile": "llm", "timeout_s": 60},
        "tasks": {"train": "/train", "heldout": "/heldout" if heldout else None},
        "cells": {
            "count": cells,
            "capacity": capacity,
            "pool_count": pool_count,
            "pool_capacity": pool_capacity,
        },
        "schedule": numbers | schedule,
    }
    return JobSpec.model_validate(raw | (sections or {}))
