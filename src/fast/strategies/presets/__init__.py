"""The presets: each configures a family in a few lines and carries the paper's name.

In the equations w_i are worker i's weights, g_i its mini-batch gradient at its own weights, eta the
step of the user's optimizer and P the number of workers. Bytes are per worker and step, for d
values of 4 bytes; a letter adds a header of 256 bytes.
"""

from fast.strategies.presets.asynchronous import (
    agn,
    dc_asgd,
    distbelief,
    downpour,
    staleness_aware,
    tensorflow,
)
from fast.strategies.presets.averaging import allreduce, pytorch, sfb
from fast.strategies.presets.central import (
    bigdl,
    caffeonspark,
    essp,
    mxnet,
    parameter_server,
    petuum,
    ssp,
    vap,
)
from fast.strategies.presets.elastic import eamsgd, easgd, mpca_sgd, tree_easgd
from fast.strategies.presets.gossip import ad_psgd, gosgd, gossip, gossipgrad, osgp, sgp
from fast.strategies.presets.local import local_sgd, one_shot, post_local_sgd, sparknet
from fast.strategies.presets.neighbours import choco, dpsgd, torus
from fast.strategies.presets.outer import diloco, noloco, slowmo, streaming_diloco
from fast.strategies.presets.systems import firecaffe, hogwild, project_adam, proxies

__all__ = [
    "ad_psgd",
    "agn",
    "allreduce",
    "bigdl",
    "caffeonspark",
    "choco",
    "dc_asgd",
    "diloco",
    "distbelief",
    "downpour",
    "dpsgd",
    "eamsgd",
    "easgd",
    "essp",
    "firecaffe",
    "gosgd",
    "gossip",
    "gossipgrad",
    "hogwild",
    "local_sgd",
    "mpca_sgd",
    "mxnet",
    "noloco",
    "one_shot",
    "osgp",
    "parameter_server",
    "petuum",
    "post_local_sgd",
    "project_adam",
    "proxies",
    "pytorch",
    "sfb",
    "sgp",
    "slowmo",
    "sparknet",
    "ssp",
    "staleness_aware",
    "streaming_diloco",
    "tensorflow",
    "torus",
    "tree_easgd",
    "vap",
]
