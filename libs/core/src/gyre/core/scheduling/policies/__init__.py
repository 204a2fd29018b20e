"""Policies by name: the elastic one and the baselines it is compared with, on the same decider."""

from __future__ import annotations

from gyre.contracts.schedule import PolicyName
from gyre.core.scheduling.policies.base import BurstEnd, Policy, whole_burst_ready
from gyre.core.scheduling.policies.colocate import Colocate
from gyre.core.scheduling.policies.elastic import Elastic
from gyre.core.scheduling.policies.fixed import Fixed
from gyre.core.scheduling.policies.levelled import LongestFirst
from gyre.core.scheduling.state import JobState

__all__ = ["POLICIES", "BurstEnd", "Policy", "policy_of", "whole_burst_ready"]

POLICIES: dict[PolicyName, Policy] = {
    "gyre": Elastic(),
    "gyre+": LongestFirst(),
    "async": Fixed(),
    "colocate": Colocate(),
}


def policy_of(state: JobState) -> Policy:
    """The job's policy."""
    return POLICIES[state.required_spec.schedule.policy]
