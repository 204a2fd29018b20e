"""The learning rate by update: up in a line, then as the job's schedule says."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.trainer.errors import BadCommand
from gyre.cell_agent.trainer.settings import OptimizerSettings, parse_settings
from gyre.contracts.job import ObjectiveSection
from gyre.contracts.training_job import OptimizerSection

OBJECTIVE = ObjectiveSection().model_dump()


def optimizer(**section: Any) -> OptimizerSettings:
    sections = OptimizerSection(**section).model_dump()
    return parse_settings("j", OBJECTIVE, sections).optimizer


def rates(settings: OptimizerSettings, count: int) -> list[float]:
    return [settings.lr_of_update(number) for number in range(count)]


def test_a_trainer_is_told_every_field_of_the_jobs_section() -> None:
    assert {field.name for field in fields(OptimizerSettings)} == set(OptimizerSection.model_fields)
    section = OptimizerSection(lr=3e-4, schedule="cosine", decay_steps=7, min_lr=1e-5)
    assert asdict(optimizer(**section.model_dump())) == section.model_dump()


def test_a_constant_schedule_rises_to_the_rate_and_stays() -> None:
    settings = optimizer(lr=8e-4, warmup_steps=4)
    assert rates(settings, 7) == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 8e-4, 8e-4, 8e-4])
    assert rates(optimizer(lr=8e-4), 2) == [8e-4, 8e-4]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_a_falling_schedule_meets_both_ends_exactly_and_stays_below(
    schedule: str, warmup: int
) -> None:
    settings = optimizer(
        lr=7e-4, min_lr=3e-5, schedule=schedule, decay_steps=10, warmup_steps=warmup
    )
    found = rates(settings, warmup + 20)[warmup:]
    assert found[0] == 7e-4
    assert found[10:] == [3e-5] * 10
    assert all(later < earlier for earlier, later in itertools.pairwise(found[:11]))


def test_halfway_down_a_line_and_a_cosine_are_at_the_mean() -> None:
    for schedule in ("linear", "cosine"):
        settings = optimizer(lr=4e-4, min_lr=2e-4, schedule=schedule, decay_steps=8)
        assert settings.lr_of_update(4) == pytest.approx(3e-4)
    quarter = optimizer(lr=1.0, schedule="cosine", decay_steps=4).lr_of_update(1)
    assert quarter == pytest.approx((1 + math.sqrt(0.5)) / 2)


@given(
    lr=st.floats(1e-9, 1.0),
    share=st.floats(0.0, 1.0),
    steps=st.integers(1, 50),
    warmup=st.integers(0, 20),
    number=st.integers(0, 100),
    schedule=st.sampled_from(["linear", "cosine"]),
)
def test_a_rate_never_leaves_its_bounds(
    lr: float, share: float, steps: int, warmup: int, number: int, schedule: str
) -> None:
    low = lr * share
    settings = optimizer(
        lr=lr, min_lr=low, schedule=schedule, decay_steps=steps, warmup_steps=warmup
    )
    rate = settings.lr_of_update(number)
    least = low if number >= warmup else 0.0
    assert least * (1 - 1e-12) <= rate <= lr * (1 + 1e-12)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"schedule": "square"}, "there are constant, linear, cosine"),
        ({"schedule": "linear"}, "decay_steps is None"),
        ({"decay_steps": 3}, "constant has none"),
    ],
)
def test_a_schedule_that_is_none_is_refused(changed: dict[str, Any], words: str) -> None:
    section = OptimizerSection().model_dump() | changed
    with pytest.raises(BadCommand, match=words):
        parse_settings("j", OBJECTIVE, section)
