"""The taxonomy's criteria as rules: which technique a situation asks for, each with its source.

Rules match by needs first (R9, R8), then by numbers: rho is what a full exchange takes against computing a step,
straggling how far the slowest worker is behind. All that match are told, and the first one of which not everything is
vetoed decides what is expected; which preset it is in the end, the prediction says. R11 only warns.

"Langer et al." is M. Langer, Z. He, W. Rahayu, Y. Xue, Distributed Training of Deep Learning Models: A Taxonomic
Perspective, IEEE TPDS 2020; "Ben-Nun and Hoefler" is T. Ben-Nun, T. Hoefler, Demystifying Parallel and Distributed
Deep Learning, ACM Computing Surveys 2019. Thresholds that no paper gives are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fast.core import Strategy
from fast.lab.planner.efficiency import encodes
from fast.lab.planner.facts import Facts
from fast.lab.planner.situation import Situation

SMALL_RHO = 0.2
"""Up to here an exchange is lost in the noise of computing."""
LARGE_RHO = 2.0
"""Beyond it links are slow: neither overlap nor a few local steps hide them. Ours."""
STRAGGLING = 1.3
"""The slowest against the usual step, from which on waiting for everybody costs. Ours."""
GOSSIPING = 32
"""Workers up to which plain gossip has been seen to keep its accuracy."""

LANGER = "Langer et al. 2020"
BEN_NUN = "Ben-Nun and Hoefler 2019"


@dataclass(frozen=True)
class Match:
    """A rule that holds, told for this situation."""

    id: str
    title: str
    sentence: str
    source: str
    presets: tuple[str, ...] = ()
    """Those that it asks for; none, if it only warns."""
    loose: bool = False
    """Whether it asks for calls that don't go in lock-step."""
    packed: tuple[str, ...] = ()
    """Those that it asks for if they compress what they send."""

    def asks_for(self, name: str, strategy: Strategy) -> bool:
        asked = name in self.presets or (name in self.packed and encodes(strategy))
        return asked and not (self.loose and strategy.synchronous)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "sentence": self.sentence,
            "source": self.source,
            "presets": list(self.presets),
            "packed": list(self.packed),
        }


@dataclass(frozen=True)
class Rule:
    """When it holds, and what it says then."""

    id: str
    title: str
    holds: Callable[[Situation, Facts], bool]
    says: Callable[[Situation, Facts], str]
    source: str
    presets: tuple[str, ...] = ()
    loose: bool = False
    packed: tuple[str, ...] = ()

    def match(self, situation: Situation, facts: Facts) -> Match | None:
        if not self.holds(situation, facts):
            return None
        return Match(
            self.id,
            self.title,
            self.says(situation, facts),
            self.source,
            self.presets,
            self.loose,
            self.packed,
        )


def matches(situation: Situation, facts: Facts) -> tuple[Match, ...]:
    """Every rule that holds, the one that decides first."""
    found = (rule.match(situation, facts) for rule in RULES)
    return tuple(match for match in found if match is not None)


# When they hold


def _small(situation: Situation, facts: Facts) -> bool:
    return facts.rho <= SMALL_RHO


def _even(situation: Situation, facts: Facts) -> bool:
    return _small(situation, facts) and situation.straggling.worst <= STRAGGLING


def _persistent(situation: Situation, facts: Facts) -> bool:
    return _small(situation, facts) and situation.straggling.always > STRAGGLING


def _sporadic(situation: Situation, facts: Facts) -> bool:
    straggling = situation.straggling
    return _small(situation, facts) and straggling.always <= STRAGGLING < straggling.at_times


def _medium(situation: Situation, facts: Facts) -> bool:
    return SMALL_RHO < facts.rho <= LARGE_RHO


def _slow(situation: Situation, facts: Facts) -> bool:
    return facts.rho > LARGE_RHO


def _latent(situation: Situation, facts: Facts) -> bool:
    return facts.latency_bound and not _small(situation, facts)


def _hostile(situation: Situation, facts: Facts) -> bool:
    return situation.needs.hostile > 0


def _unreliable(situation: Situation, facts: Facts) -> bool:
    return situation.needs.unreliable


def _crowded_master(situation: Situation, facts: Facts) -> bool:
    return facts.master_bound


def _many(situation: Situation, facts: Facts) -> bool:
    return situation.workers > GOSSIPING


def _always(situation: Situation, facts: Facts) -> bool:
    return True


# What they say


def _rho(facts: Facts) -> str:
    return (
        f"a full exchange takes {short_time(facts.exchange_s)} at best, {facts.rho:.2g} times the "
        f"{short_time(facts.step_s)} of computing a step"
    )


def short_time(seconds: float) -> str:
    """
    >>> short_time(12.345), short_time(0.2), short_time(0.0123)
    ('12.3 s', '200 ms', '12.3 ms')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _says_hostile(situation: Situation, facts: Facts) -> str:
    hostile = situation.needs.hostile
    return (
        f"up to {hostile} of {situation.workers} workers may send anything, so gradients of one step are merged by a "
        f"robust rule (Krum and its kin need 2 f + 3 = {2 * hostile + 3} workers)"
    )


def _says_unreliable(situation: Situation, facts: Facts) -> str:
    return (
        "machines come and go, so nobody should wait for one in particular; the model is the average of all"
    )


def _says_latent(situation: Situation, facts: Facts) -> str:
    return (
        f"letters are on the way for {short_time(facts.hops_s)} in the hops of a round, and their bytes take only "
        f"{short_time(facts.transmit_s)}: fewer messages count, not fewer bytes"
    )


def _says_even(situation: Situation, facts: Facts) -> str:
    return f"{_rho(facts)}, and workers are alike: waiting for everybody costs next to nothing"


def _says_sporadic(situation: Situation, facts: Facts) -> str:
    return (
        f"the network is fast enough ({_rho(facts)}), but a round takes {situation.straggling.at_times:.2g} times as "
        "long as a usual step because somebody is late at times: don't wait for the last ones"
    )


def _says_persistent(situation: Situation, facts: Facts) -> str:
    return (
        f"the network is fast enough ({_rho(facts)}), but the slowest worker is always "
        f"{situation.straggling.always:.2g} times slower than a usual one: let the others go on without it"
    )


def _says_medium(situation: Situation, facts: Facts) -> str:
    return f"{_rho(facts)}: hide it behind backward, then send less of it"


def _says_slow(situation: Situation, facts: Facts) -> str:
    return f"{_rho(facts)}: the links are slow, so exchange seldom, or only a small part"


def _says_master(situation: Situation, facts: Facts) -> str:
    return (
        f"the models of {situation.workers} workers keep the link of one server busy for "
        f"{short_time(facts.master_s)} a step: use many shards, a tree, or neighbours in place of a server"
    )


def _says_many(situation: Situation, facts: Facts) -> str:
    return (
        f"on more than {GOSSIPING} workers plain gossip has lost accuracy: average everybody's weights now and then, "
        "and measure the averaged model"
    )


def _says_compare(situation: Situation, facts: Facts) -> str:
    return "compare by the time to a target accuracy, never by samples per second alone"


RULES = (
    Rule(
        "R9", "hostile workers", _hostile, _says_hostile,
        f"Blanchard et al., NIPS 2017; {BEN_NUN}",
        ("allreduce", "ssp", "tensorflow"),
    ),
    Rule(
        "R8", "unreliable machines", _unreliable, _says_unreliable,
        f"{LANGER}, section 4.3; Blot et al. 2016; Assran et al. 2019",
        ("gosgd", "gossip", "sgp", "osgp", "noloco", "ad_psgd"),
    ),
    Rule(
        "R6", "latency-bound", _latent, _says_latent,
        f"{BEN_NUN}, section 2.4",
        ("sgp", "osgp", "gossipgrad", "local_sgd", "diloco", "noloco", "slowmo"),
    ),
    Rule(
        "R1", "fast network, even machines", _even, _says_even,
        f"{LANGER}, section 4.3",
        ("allreduce", "pytorch", "bigdl", "caffeonspark", "mxnet", "sfb"),
    ),
    Rule(
        "R2", "fast network, stragglers at times", _sporadic, _says_sporadic,
        "Chen et al. 2016 (backup workers); Ho et al. 2013 (bounded staleness)",
        ("tensorflow", "ssp", "essp", "petuum"), loose=True,
    ),
    Rule(
        "R3", "fast network, slow machines", _persistent, _says_persistent,
        "Lian et al. 2018 (AD-PSGD); Zheng et al. 2017 (DC-ASGD); Zhang et al. 2016",
        ("ad_psgd", "ssp", "dc_asgd", "staleness_aware", "downpour", "gosgd"), loose=True,
    ),
    Rule(
        "R4", "exchange about as long as a step", _medium, _says_medium,
        "Li et al. 2020 (overlap); Vogels et al. 2019, Lin et al. 2018 and Karimireddy et al. 2019 (compression)",
        ("pytorch", "dpsgd", "local_sgd"),
    ),
    Rule(
        "R5", "slow links", _slow, _says_slow,
        f"{LANGER}, section 4.3; Zhang et al. 2015 (EASGD); Wang et al. 2020 (SlowMo); Douillard et al. 2023 (DiLoCo); "
        "Karimireddy et al. 2019 (signs with error feedback)",
        ("local_sgd", "diloco", "easgd", "slowmo", "eamsgd", "tree_easgd", "streaming_diloco"), packed=("pytorch",),
    ),
    Rule(
        "R7", "one server's link is the bottleneck", _crowded_master, _says_master,
        f"{LANGER}, section 3.4",
        ("ssp", "dc_asgd", "tensorflow", "bigdl", "tree_easgd", "dpsgd", "torus"),
    ),
    Rule(
        "R10", "many workers", _many, _says_many,
        f"{BEN_NUN}, section 7.2",
        ("slowmo", "local_sgd", "diloco"),
    ),
    Rule("R11", "whatever is compared", _always, _says_compare, f"{LANGER}, section 4.3"),
)  # fmt: skip
"""In the order in which they decide."""
