"""The programs and the presets.

Job: say how workers talk, each strategy as short as its paper's pseudo-code.
May import: collectives, core, parts, view, errors.
Never: reads a clock, draws a random number, opens anything. `me` has all of that.
"""

from fast.strategies.catalogue import Preset, catalogue, find
from fast.strategies.presets import (
    agn,
    allreduce,
    bigdl,
    caffeonspark,
    choco,
    dc_asgd,
    distbelief,
    downpour,
    dpsgd,
    essp,
    firecaffe,
    gossip,
    hogwild,
    local_sgd,
    mxnet,
    parameter_server,
    petuum,
    project_adam,
    proxies,
    pytorch,
    sfb,
    ssp,
    staleness_aware,
    tensorflow,
    torus,
    vap,
)

__all__ = [
    "Preset",
    "agn",
    "allreduce",
    "bigdl",
    "caffeonspark",
    "catalogue",
    "choco",
    "dc_asgd",
    "distbelief",
    "downpour",
    "dpsgd",
    "essp",
    "find",
    "firecaffe",
    "gossip",
    "hogwild",
    "local_sgd",
    "mxnet",
    "parameter_server",
    "petuum",
    "project_adam",
    "proxies",
    "pytorch",
    "sfb",
    "ssp",
    "staleness_aware",
    "tensorflow",
    "torus",
    "vap",
]
