"""The table of all presets: which calls of each go through the generic tests."""

from __future__ import annotations

PRESETS: dict[str, list[str]] = {
    "allreduce": [
        "allreduce",
        "allreduce(algorithm='ring')",
        "allreduce(codec=int8, bucket_mb=0.00001)",
        "allreduce(codec=error_feedback(top_k(0.3)))",
        "allreduce(rule=median)",
    ],
    "local_sgd": ["local_sgd(tau=1)", "local_sgd(tau=7)"],
    "pytorch": ["pytorch"],
    "ssp": [
        "ssp(bound=0)",
        "ssp(bound=2)",
        "ssp(bound=inf)",
        "ssp(bound=2, codec=fp16, bucket_mb=0.00001)",
        "ssp(bound=1, servers=2, correction=by_staleness)",
    ],
    "essp": ["essp(bound=2)", "essp(bound=1, servers=2, codec=fp16)"],
    "vap": ["vap(limit=0.3)"],
    "parameter_server": ["parameter_server"],
    "petuum": ["petuum", "petuum(bound=2, eager=False)"],
    "mxnet": ["mxnet", "mxnet('dist_async')"],
    "bigdl": ["bigdl"],
    "caffeonspark": ["caffeonspark"],
    "tensorflow": ["tensorflow", "tensorflow(backups=0, servers=2)", "tensorflow(quorum=0.6)"],
    "downpour": [
        "downpour",
        "downpour(fetch=3, push=2, servers=2)",
        "downpour(correction=chain(delay_compensation(0.1), by_staleness))",
    ],
    "distbelief": ["distbelief(warm=0)"],
    "dc_asgd": ["dc_asgd", "dc_asgd(adaptive=True, strength=0.05, servers='workers')"],
    "staleness_aware": ["staleness_aware", "staleness_aware(n=2, codec=fp16, servers=2)"],
    "agn": ["agn(steps=3)"],
    "dpsgd": ["dpsgd", "dpsgd(topology=torus)"],
    "torus": [
        "torus",
        "torus(send='merged')",
        "torus(rule=sum, topology=full)",
        "torus(codec=int8, bucket_mb=0.00001)",
        "torus(rule=trimmed_mean(1))",
    ],
    "gossip": ["gossip(p=0.3)"],
    "sfb": ["sfb"],
    "choco": ["choco(codec=int8, gamma=0.5)"],
    "firecaffe": ["firecaffe"],
    "proxies": ["proxies(group=2)", "proxies(group=2, flush=2)"],
    "hogwild": ["hogwild"],
    "project_adam": ["project_adam"],
}

CALLS: list[str] = [call for calls in PRESETS.values() for call in calls]

ALIKE = (
    "allreduce(codec=error_feedback(top_k(0.3)))",
    "local_sgd(tau=1)",
    "pytorch",
    "ssp(bound=inf)",
    "essp(bound=1, servers=2, codec=fp16)",
    "parameter_server",
    "petuum",
    "mxnet",
    "mxnet('dist_async')",
    "caffeonspark",
    "tensorflow(quorum=0.6)",
    "downpour",
    "downpour(correction=chain(delay_compensation(0.1), by_staleness))",
    "distbelief(warm=0)",
    "dc_asgd",
    "staleness_aware",
    "dpsgd(topology=torus)",
    "torus(send='merged')",
    "torus(rule=sum, topology=full)",
    "proxies(group=2, flush=2)",
)
"""Other rows run the same programs on real workers too: these do so only where it may take long."""

DIFFERENT: list[str] = [call for call in CALLS if call not in ALIKE]
"""Each program once, for tests of what surrounds the programs."""
