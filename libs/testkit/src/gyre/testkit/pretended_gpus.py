"""A machine's GPUs, as far as `cell_agent.gpus` looks at them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.cell_agent import gpus


def pretend_gpus(
    monkeypatch: pytest.MonkeyPatch, devices: Path, count: int, *, torch_for_gpus: bool
) -> None:
    """devices: an empty directory in the place of /dev. All are seen."""
    for name in ("nvidiactl", *(f"nvidia{number}" for number in range(count))):
        (devices / name).touch()
    monkeypatch.setattr(gpus, "_DEVICES", devices)
    monkeypatch.setattr(gpus, "_DRIVER", devices / "nvidiactl")
    monkeypatch.setattr(gpus, "torch_is_for_gpus", lambda: torch_for_gpus)
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
