"""Which calls a plan compares: each preset with the arguments that fit a situation.

Intervals are what brings the exchange down to a fifth of computing, tau = rho / 0.2, as a power of two within the
range that the papers used. A preset that isn't mentioned here takes part with its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from fast.lab.planner.facts import Facts
from fast.lab.planner.rules import SMALL_RHO, STRAGGLING
from fast.lab.planner.situation import Situation
from fast.strategies.catalogue import catalogue

LOCAL_STEPS = (2, 64)
"""Between two means of weights: from twice as few exchanges to what EASGD's and SlowMo's papers went to."""
OUTER_STEPS = (32, 512)
"""Of DiLoCo and its kin, which need an outer optimizer's long interval."""
ELASTIC_STEPS = (8, 64)
BACKUPS = 0.05
"""The share of workers that aren't waited for, rounded up: Chen et al. saw the best of it from 0.05 to 0.1."""
CHANCES = (0.5, 0.1, 0.02)
"""Of a gossip in a step; 0.02 is the paper's."""
BOUNDS = (3, 10)
NEIGHBOURS = 4
"""To whom a worker on a torus sends in every step."""
SHARDED, TREE = "bigdl", "tree_easgd"
MOST_SHARDS = 16
MOST_LETTERS, MOST_BUCKETS = 64, 16
"""Workers up to which compression is compared (its means are letters from everybody to everybody, too many to predict
beyond), and those up to which a gradient may go in buckets then."""
CODEC = "ef_sign()"
"""One bit per value with error feedback: any model, and traffic that doesn't grow with the workers."""
MATRIX_CODEC = "power_sgd(2)"
"""Where the shapes of matrices are known."""

LIKE: Mapping[str, str] = MappingProxyType(
    {
        "bigdl": "allreduce",
        "caffeonspark": "allreduce",
        "mxnet": "allreduce",
        "firecaffe": "allreduce",
        "proxies": "allreduce",
        "sfb": "allreduce",
        "post_local_sgd": "allreduce",
        "parameter_server": "ssp",
        "essp": "ssp",
        "petuum": "ssp",
        "vap": "ssp",
        "downpour": "dc_asgd",
        "distbelief": "dc_asgd",
        "staleness_aware": "dc_asgd",
        "agn": "dc_asgd",
        "project_adam": "dc_asgd",
        "hogwild": "dc_asgd",
        "sparknet": "local_sgd",
        "one_shot": "local_sgd",
        "streaming_diloco": "diloco",
        "eamsgd": "easgd",
        "tree_easgd": "easgd",
        "mpca_sgd": "easgd",
        "gossip": "gosgd",
        "osgp": "sgp",
        "gossipgrad": "sgp",
        "choco": "dpsgd",
    }
)
"""Presets that a comparison leaves out, and the one that stands for them: same family, near traffic and delay."""

Calls = Callable[[Situation, Facts], list[str]]


def calls_of(situation: Situation, facts: Facts) -> list[tuple[str, str]]:
    """Name and call of all that is compared: one of each preset, two where compression may pay.

    Where workers have no room for the optimizer, a shard of it in every worker stands for itself; likewise a tree,
    where the link of one centre couldn't carry all (R7).
    """
    own = (*[SHARDED] * (not situation.fits_optimizer), *[TREE] * facts.master_bound)
    names = [name for name in catalogue() if name not in LIKE or name in own]
    return [(name, call) for name in names for call in _CALLS.get(name, _usual(name))(situation, facts)]


def power_of_two(wanted: float, least: int, most: int) -> int:
    """The next one up, within bounds that are powers of two themselves.

    >>> power_of_two(5.1, 2, 64), power_of_two(0, 2, 64), power_of_two(1e9, 2, 64)
    (8, 2, 64)
    """
    return int(min(most, max(least, 2 ** math.ceil(math.log2(max(1.0, wanted))))))


def _usual(name: str) -> Calls:
    return lambda situation, facts: [name]


def _interval(facts: Facts, bounds: tuple[int, int]) -> int:
    return power_of_two(facts.rho / SMALL_RHO, *bounds)


def _servers(facts: Facts) -> str:
    """So many shards that the link of none is busy for more than half a step, where one couldn't carry all (R7)."""
    return str(power_of_two(2 * facts.master_s / facts.step_s, 2, MOST_SHARDS)) if facts.master_bound else "1"


def _robust(situation: Situation) -> str:
    return f"multi_krum({situation.needs.hostile})"


# Calls


def _allreduce(situation: Situation, facts: Facts) -> list[str]:
    return [f"allreduce(rule={_robust(situation)})" if situation.needs.hostile else "allreduce"]


def _pytorch(situation: Situation, facts: Facts) -> list[str]:
    if facts.rho <= SMALL_RHO or situation.workers > MOST_LETTERS:
        return ["pytorch"]
    shapes = any(len(segment.shape) >= 2 for segment in situation.sizes.layout.segments)
    whole = "bucket_mb=None, " if situation.workers > MOST_BUCKETS else ""
    return ["pytorch", f"pytorch({whole}codec={MATRIX_CODEC if shapes else CODEC})"]


def _tensorflow(situation: Situation, facts: Facts) -> list[str]:
    """Backups pay only where somebody is late; and a robust rule needs enough that aren't."""
    hostile, backups = situation.needs.hostile, math.ceil(BACKUPS * situation.workers)
    if hostile and situation.workers - backups >= 2 * hostile + 3:
        return [f"tensorflow(backups={backups}, rule={_robust(situation)})"]
    if hostile or situation.straggling.worst <= STRAGGLING:
        return []
    return [f"tensorflow(backups={backups}, servers={_servers(facts)})"]


def _ssp(situation: Situation, facts: Facts) -> list[str]:
    needs = situation.needs
    if needs.hostile:
        shards = f"rule=trimmed_mean({needs.hostile}), servers={_servers(facts)}"
        return [f"ssp(bound=0, {shards if facts.master_bound else f'rule={_robust(situation)}'})"]
    if needs.reproducible or needs.shards_unlike:
        return [f"ssp(bound=0, servers={_servers(facts)})"]
    bound = next((bound for bound in BOUNDS if bound >= situation.straggling.at_times), BOUNDS[-1])
    return [f"ssp(bound={bound}, servers={_servers(facts)})"]


def _dc_asgd(situation: Situation, facts: Facts) -> list[str]:
    return [f"dc_asgd(servers={_servers(facts)})"]


def _local_sgd(situation: Situation, facts: Facts) -> list[str]:
    return [f"local_sgd(tau={_interval(facts, LOCAL_STEPS)})"]


def _slowmo(situation: Situation, facts: Facts) -> list[str]:
    return [f"slowmo(tau={_interval(facts, LOCAL_STEPS)})"]


def _diloco(situation: Situation, facts: Facts) -> list[str]:
    return [f"diloco(interval={_interval(facts, OUTER_STEPS)})"]


def _noloco(situation: Situation, facts: Facts) -> list[str]:
    return [f"noloco(interval={_interval(facts, OUTER_STEPS)})"]


def _easgd(situation: Situation, facts: Facts) -> list[str]:
    """All workers share the link of the centre, so the interval follows the master's time."""
    tau = power_of_two(2 * facts.master_s / facts.step_s, *ELASTIC_STEPS)
    waiting = ", synchronous=True" if situation.needs.reproducible else ""
    return [f"easgd(tau={tau}{waiting})"]


def _tree_easgd(situation: Situation, facts: Facts) -> list[str]:
    """Who has a parent and two children sends three models in an interval."""
    steps = power_of_two(3 * facts.transmit_s / facts.step_s / SMALL_RHO, *ELASTIC_STEPS)
    return [f"tree_easgd(up={steps}, down={steps})"]


def _torus(situation: Situation, facts: Facts) -> list[str]:
    """It sends in every step and never waits: what links can't carry in a step is added up before them, and comes as
    sums of old gradients."""
    return ["torus"] if NEIGHBOURS * facts.transmit_s <= facts.step_s else []


def _gosgd(situation: Situation, facts: Facts) -> list[str]:
    affordable = SMALL_RHO * facts.step_s / facts.transmit_s if facts.transmit_s else math.inf
    return [f"gosgd(p={next((p for p in CHANCES if p <= affordable), CHANCES[-1])})"]


_CALLS: Mapping[str, Calls] = MappingProxyType(
    {
        "allreduce": _allreduce,
        "pytorch": _pytorch,
        "tensorflow": _tensorflow,
        "ssp": _ssp,
        "dc_asgd": _dc_asgd,
        "local_sgd": _local_sgd,
        "slowmo": _slowmo,
        "diloco": _diloco,
        "noloco": _noloco,
        "easgd": _easgd,
        "tree_easgd": _tree_easgd,
        "gosgd": _gosgd,
        "torus": _torus,
    }
)
