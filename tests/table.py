"""The table of all presets: which calls of each go through the generic tests."""

from __future__ import annotations

PRESETS: dict[str, list[str]] = {
    "allreduce": ["allreduce"],
    "local_sgd": ["local_sgd(tau=1)", "local_sgd(tau=7)"],
    "ssp": ["ssp(bound=0)", "ssp(bound=2)", "ssp(bound=inf)"],
    "dpsgd": ["dpsgd", "dpsgd(topology=torus)"],
    "torus": ["torus", "torus(send='merged')", "torus(rule=sum, topology=full)"],
    "gossip": ["gossip(p=0.3)"],
}

CALLS: list[str] = [call for calls in PRESETS.values() for call in calls]
