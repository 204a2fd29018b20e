"""Continuous dispatch, counted: how much staler it makes groups than boundary dispatch.

docs/staleness.md derives E_c[d] - E_b[d] = 1 + R/B. The paper's digest states the gap without
saying what R is; here R is the number of groups in rollout at any time. This is a counting model
of its own: the live decider dispatches at publications only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


def continuous_gap(num_running: int, groups_per_step: int) -> float:
    """1 + R/B, in optimizer steps."""
    return 1 + num_running / groups_per_step


def mean_continuous_staleness(
    *,
    phi: float,
    mu: int,
    groups_per_step: int,
    num_running: int,
    num_steps: int,
    duration: Callable[[int], float],
) -> float:
    """Group-weighted mean of v_t - v_d over `num_steps` steps of continuous dispatch.

    R = num_running groups run at any time: when one ends, the next is dispatched into its slot,
    stamped with the version published then. (1 + phi) B finished groups stand between rollout and
    training: the batch in hand and the extra dispatch. Whatever ends beyond them is consumed, the
    oldest version first. duration: of the nth group dispatched, any positive unit.
    """
    depth = round((1 + phi) * groups_per_step)
    running = [(duration(number), number, 0) for number in range(num_running)]
    heapq.heapify(running)
    finished: list[tuple[int, int]] = []
    num_dispatched, num_consumed, total = num_running, 0, 0
    while num_consumed < num_steps * groups_per_step:
        now, number, version = heapq.heappop(running)
        heapq.heappush(finished, (version, number))
        step = num_consumed // groups_per_step
        published = step - step % mu
        heapq.heappush(running, (now + duration(num_dispatched), num_dispatched, published))
        num_dispatched += 1
        if len(finished) > depth:
            drawn, _ = heapq.heappop(finished)
            total += step - drawn
            num_consumed += 1
    return total / num_consumed
