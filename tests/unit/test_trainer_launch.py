"""A trainer's command line says to it what its agent means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.trainer.launch import DTYPES, TrainerLaunch, read_command

launches = st.builds(
    TrainerLaunch,
    cell=st.integers(0, 10_000),
    model_path=st.sampled_from([Path("/models/a b"), Path("relative"), Path("/--cell")]),
    threads=st.integers(1, 64),
    nice=st.integers(0, 19),
    dtype=st.sampled_from(DTYPES),
    tokens_per_s=st.none() | st.floats(1e-3, 1e9),
)


@given(launch=launches, control=st.sampled_from(["7", "/run/control socket"]))
def test_what_is_written_is_what_is_read(launch: TrainerLaunch, control: str) -> None:
    _, *module = launch.command(control)[:3]
    assert module == ["-m", "gyre.cell_agent.trainer"]
    assert read_command(launch.command(control)[3:]) == (launch, control)


@pytest.mark.parametrize("speed", ["0", "-3", "inf", "nan", "fast"])
def test_a_speed_that_is_none_is_status_2_and_named(
    speed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = TrainerLaunch(cell=0, model_path=Path("m")).command("7")[3:]
    with pytest.raises(SystemExit) as ended:
        read_command([*command, "--emulate-tokens-per-s", speed])
    assert ended.value.code == 2
    assert "--emulate-tokens-per-s" in capsys.readouterr().err
