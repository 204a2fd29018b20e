"""What is packed of an execution is what the admission law, read word by word from its recorded
calls, says: paths, targets, contexts, log-probabilities and versions, over trees of every shape."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallUndelivered
from gyre.core.admission import seeded
from gyre.core.tree import fold
from gyre.testkit.admission_oracle import expected_of
from gyre.testkit.carried_tokens import assert_carried, blocks_of
from gyre.testkit.draws import draw_samples
from gyre.testkit.trajectory_world import Caller

ROLES = ("main", "main", "main-summary", "sub-agent", "sub-agent-summary", "other")
SCORED = 2


def random_calls(rng: random.Random) -> list[Body]:
    """Calls below anything that was there before, some not to be trained, of two attempts."""
    caller = Caller("e", rng)
    above: list[str | None] = [None]
    for number in range(rng.randrange(1, 14)):
        caller.attempt = SCORED if number > 2 else rng.choice([1, SCORED])
        caller.version = rng.randrange(3)
        node = caller.call(
            rng.choice([*above[-4:], None]),
            role=rng.choice(ROLES),
            outcome=rng.choice(["committed"] * 5 + ["aborted", "failed", "superseded"]),
            num_input=rng.randrange(1, 9),
            num_output=rng.randrange(6),
        )
        above.append(node)
    undelivered = [
        CallUndelivered(call=call.call, execution="e", reason="client left")
        for call in caller.events
        if isinstance(call, CallRecorded) and rng.random() < 0.1
    ]
    return [*caller.events, *undelivered]


@given(
    shape=st.integers(0, 2**32),
    seed=st.integers(0, 2**16),
    cap=st.sampled_from([1, 2, 5, None]),
    row_tokens=st.sampled_from([24, 48, 512]),
)
def test_what_is_packed_is_what_the_law_says_of_the_recorded_calls(
    shape: int, seed: int, cap: int | None, row_tokens: int
) -> None:
    calls = random_calls(random.Random(shape))
    settings = {"attempt": SCORED, "row_tokens": row_tokens, "max_trajectories": cap}
    samples = draw_samples(fold(calls), rng=seeded(seed, "e"), **settings)
    expected = expected_of(calls, seed=seed, execution="e", **settings)
    assert samples.num_targets == expected.num_targets
    assert samples.num_paths == len(expected.paths)
    assert samples.num_paths_too_long == expected.num_paths_too_long
    if expected.temperature is not None:
        assert samples.temperature == expected.temperature
    assert_carried("e", expected, blocks_of(samples))
    assert all(len(block.token_ids) <= row_tokens for block in samples.blocks)
    if cap is None and not expected.num_paths_too_long:
        assert expected.num_left_out == 0
