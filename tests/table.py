"""The table of all presets: which calls of each go through the generic tests."""

from __future__ import annotations

PRESETS: dict[str, list[str]] = {
    "allreduce": [
        "allreduce",
        "allreduce(algorithm='ring')",
        "allreduce(codec=int8, bucket_mb=0.00001)",
        "allreduce(codec=error_feedback(top_k(0.3)))",
    ],
    "local_sgd": ["local_sgd(tau=1)", "local_sgd(tau=7)"],
    "ssp": ["ssp(bound=0)", "ssp(bound=2)", "ssp(bound=inf)", "ssp(bound=2, codec=fp16, bucket_mb=0.00001)"],
    "dpsgd": ["dpsgd", "dpsgd(topology=torus)"],
    "torus": [
        "torus",
        "torus(send='merged')",
        "torus(rule=sum, topology=full)",
        "torus(codec=int8, bucket_mb=0.00001)",
    ],
    "gossip": ["gossip(p=0.3)"],
    "sfb": ["sfb"],
    "choco": ["choco(codec=int8, gamma=0.5)"],
}

CALLS: list[str] = [call for calls in PRESETS.values() for call in calls]
