"""Arguments that several presets have: what can't be is refused in words, before anything is built."""

from __future__ import annotations

import inspect

import pytest

from fast import codecs, corrections, rules, topologies
from fast.errors import UsageError
from fast.strategies import Preset, catalogue
from fast.strategies.presets import (
    dc_asgd,
    downpour,
    eamsgd,
    easgd,
    mpca_sgd,
    mxnet,
    parameter_server,
    petuum,
    ssp,
    tensorflow,
    tree_easgd,
)

SERVERS = [each for each in catalogue().values() if each.place.optimization == "central"]
ASYNCHRONOUS = {"ssp": {"bound": 2}}
"""What a preset needs so that a correction can be given at all."""


def taking(argument: str) -> list[Preset]:
    """The presets with servers that have this argument."""
    return [each for each in SERVERS if argument in each.signature.parameters]


def cases(argument: str, wrong: list[object]) -> list[object]:
    return [
        pytest.param(preset, given, id=f"{preset.name}-{getattr(given, '__name__', given)}")
        for preset in taking(argument)
        for given in wrong
    ]


@pytest.mark.parametrize(("preset", "given"), cases("codec", ["int8", codecs.int8, codecs.power_sgd, 8]))
def test_a_codec_is_an_object_that_was_made(preset: Preset, given: object) -> None:
    with pytest.raises(UsageError, match=rf"{preset.name}\(codec=.*such as fast.codecs.int8\(\)"):
        preset(codec=given)


@pytest.mark.parametrize(
    ("preset", "given"), cases("correction", ["by_staleness", corrections.by_staleness, 3])
)
def test_a_correction_is_an_object_that_was_made(preset: Preset, given: object) -> None:
    with pytest.raises(UsageError, match=rf"{preset.name}\(correction=.*fast.corrections.by_staleness\(\)"):
        preset(**ASYNCHRONOUS.get(preset.name, {}), correction=given)


@pytest.mark.parametrize(("preset", "given"), cases("rule", ["median", 3]))
def test_a_rule_is_a_function(preset: Preset, given: object) -> None:
    bound = {"bound": 0} if "bound" in preset.signature.parameters else {}
    with pytest.raises(UsageError, match=rf"{preset.name}\(rule={given!r}\): a rule is mean, sum"):
        preset(**bound, rule=given)


@pytest.mark.parametrize(("preset", "given"), cases("rule", [rules.median, rules.krum]))
def test_a_kind_of_rule_is_called(preset: Preset, given: type) -> None:
    bound = {"bound": 0} if "bound" in preset.signature.parameters else {}
    with pytest.raises(
        UsageError, match=rf"{preset.name}\(rule={given.__name__}\).*is called, with brackets"
    ):
        preset(**bound, rule=given)


AMONG = [each for each in catalogue().values() if "topology" in each.signature.parameters]


@pytest.mark.parametrize("preset", AMONG, ids=lambda preset: preset.name)
@pytest.mark.parametrize("given", ["ring", topologies.Ring, None], ids=["text", "class", "none"])
def test_a_topology_is_an_object_that_was_made(preset: Preset, given: object) -> None:
    with pytest.raises(UsageError, match=rf"{preset.name}\(topology=.*such as fast.topologies.Ring\(\)"):
        preset(topology=given)


def test_there_are_such_presets() -> None:
    assert {"ssp", "tensorflow"} <= {each.name for each in taking("rule")}
    assert {"ssp", "downpour", "staleness_aware", "agn"} <= {each.name for each in taking("correction")}
    assert len(taking("codec")) > 8
    assert {"dpsgd", "torus", "sgp", "ad_psgd", "choco"} <= {each.name for each in AMONG}
    assert all(inspect.isclass(each) for each in (rules.median, corrections.by_staleness, codecs.int8))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: tensorflow(cancel="no"), r"tensorflow\(cancel='no'\): True or False"),
        (lambda: petuum(eager="no"), r"petuum\(eager='no'\): True or False"),
        (lambda: dc_asgd(adaptive="no"), r"dc_asgd\(adaptive='no'\): True or False"),
        (lambda: easgd(synchronous="no"), r"easgd\(synchronous='no'\): True or False"),
        (lambda: eamsgd(synchronous=1), r"eamsgd\(synchronous=1\): True or False"),
        (lambda: mpca_sgd(replace="no"), r"mpca_sgd\(replace='no'\): True or False"),
        (lambda: ssp(bound=0.5), "the bound counts whole steps"),
        (lambda: petuum(bound=65), "with a gradient of each of them in their memory. Take a bound up to 64"),
        (lambda: parameter_server(tau=0.5), "the tau counts whole steps"),
        (lambda: mxnet([1]), r"mxnet\(kvstore=\[1\]\): the store is 'dist_sync' or 'dist_async'"),
    ],
)
def test_what_would_mean_something_else_is_refused(call: Preset, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        call()


@pytest.mark.parametrize(
    ("call", "found", "tries"),
    [
        (lambda: easgd(alpha=2), "easgd(alpha=2)", "Try alpha=0.1, or leave both out: then beta is 0.9."),
        (lambda: eamsgd(beta=-0.1), "eamsgd(beta=-0.1)", "beta how much of the way to the workers' mean"),
        (lambda: tree_easgd(alpha=True), "tree_easgd(alpha=True)", "then it is 0.9 / (branching + 1)"),
        (lambda: mpca_sgd(rate=1.5), "mpca_sgd(rate=1.5)", "Try rate=1.0 and momentum=0.0"),
    ],
)
def test_a_share_that_is_none_is_answered_with_what_it_is_of(call: Preset, found: str, tries: str) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert str(refused.value).startswith(f"{found}: a number from 0 to 1 is needed: ")
    assert tries in str(refused.value)


def test_what_can_be_is_taken() -> None:
    assert ssp(bound=3.0).call.startswith("ssp(bound=3.0")
    assert ssp(bound=2, codec=codecs.int8(), correction=corrections.by_staleness()).bound == 2  # type: ignore[attr-defined]
    assert downpour(fetch=64).tags[0].capacity == 65
    assert tensorflow(rule=rules.median()).call.count("rule=median()") == 1
