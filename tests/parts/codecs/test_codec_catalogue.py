"""Codecs by name and from plain data, and what constructors and strangers may not say."""

from __future__ import annotations

import inspect
import math
from dataclasses import is_dataclass
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fast.errors import UsageError, WireError
from fast.parts import codecs
from fast.parts.codecs import (
    CODECS,
    TRANSFORMATIONS,
    Clip,
    Codec,
    Coder,
    Dgc,
    ErrorFeedback,
    Factored,
    Int8,
    Qsgd,
    RandomK,
    SampledTopK,
    TernGrad,
    Threshold,
    TopK,
    chain,
    codec_of,
    ef_sign,
    mxnet_two_bit,
    one_bit_sgd,
    power_sgd,
    strom,
)
from fast.parts.codecs.base import Workspace
from fast.view import Layout

NAMES = (
    *("fp16", "bf16", "scaled_fp16", "int8", "block_int8", "qsgd", "terngrad"),
    *("column_means", "sign", "scaled_sign", "two_bit"),
    *("top_k", "sampled_top_k", "random_k", "threshold", "low_rank", "dgc", "error_feedback", "chain"),
    *("one_bit_sgd", "ef_sign", "mxnet_two_bit", "strom", "power_sgd"),
)
GIVEN: dict[str, tuple[Any, ...]] = {
    "top_k": (0.1,),
    "sampled_top_k": (0.1,),
    "random_k": (0.1,),
    "threshold": (0.5,),
    "strom": (0.5,),
    "low_rank": (2,),
    "error_feedback": (TopK(0.1),),
    "chain": (Clip(1.0), TopK(0.1), Int8()),
}
"""What has to be given; all else has defaults."""
WRITTEN = (
    TopK(0.25),
    SampledTopK(1),
    RandomK(0.5, shared=False, seed=2**63 - 1, scaled=False),
    Threshold(3),
    Factored(7),
    Dgc(0.01, momentum=0.5, nesterov=True, clip=2.0, workers=8, warm_up=100, dense_below=5),
    ErrorFeedback(chain(TopK(0.1), Qsgd(levels=100))),
    chain(Clip(1.5), Clip(0.5), ErrorFeedback(chain(SampledTopK(0.1), Int8(stochastic=True)))),
    chain(Clip(1.0), TernGrad(clip=None)),
    one_bit_sgd(),
    power_sgd(3),
)


def every_codec() -> list[Codec]:
    return [build(*GIVEN.get(name, ())) for name, build in CODECS.items()]


def test_all_names_are_there() -> None:
    assert sorted(CODECS) == sorted(NAMES)
    assert dict(TRANSFORMATIONS) == {"clip": Clip}
    with pytest.raises(TypeError):
        CODECS["other"] = TopK  # type: ignore[index]


def test_every_codec_is_listed() -> None:
    """Whoever adds one to the package adds it to the catalogue."""
    found = {
        each
        for each in vars(codecs).values()
        if inspect.isclass(each) and issubclass(each, Codec) and is_dataclass(each)
    }
    assert found == {each for each in CODECS.values() if inspect.isclass(each)}
    assert all(name in codecs.__all__ for name, each in CODECS.items() if inspect.isfunction(each))


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isclass(CODECS[name])])
def test_a_codec_knows_its_name_and_prints_its_call(name: str) -> None:
    codec = CODECS[name](*GIVEN.get(name, ()))
    assert codec.name == name
    assert repr(codec).startswith(f"{name}(")
    assert codec.spec()[0] == name


def test_recipes_are_what_their_papers_say() -> None:
    assert repr(one_bit_sgd()) == "error_feedback(codec=column_means())"
    assert repr(ef_sign()) == "error_feedback(codec=scaled_sign())"
    assert repr(mxnet_two_bit()) == "error_feedback(codec=two_bit(threshold=0.5))"
    assert repr(strom(2.0)) == "error_feedback(codec=threshold(threshold=2.0))"
    assert repr(power_sgd()) == "error_feedback(codec=low_rank(r=2))"


@pytest.mark.parametrize("codec", [*every_codec(), *WRITTEN], ids=repr)
def test_plain_data_gives_the_codec_back(codec: Codec) -> None:
    again = codec_of(msgspec.msgpack.decode(msgspec.msgpack.encode(codec.spec())))
    assert again == codec
    assert type(again) is type(codec)
    assert repr(again) == repr(codec)
    assert codec_of(msgspec.json.decode(msgspec.json.encode(codec.spec()))) == codec


@pytest.mark.parametrize("codec", [*every_codec(), *WRITTEN], ids=repr)
def test_a_receiver_decodes_with_what_travels(codec: Codec) -> None:
    layout = Layout.of([("a", (12, 10)), ("b", (10,)), ("c", ())], torch.float32)
    values = torch.zeros(layout.size)
    for segment in layout.segments:
        values[segment.start : segment.stop] = torch.linspace(-3, 4, segment.size)
    coder, receiver = Coder(codec, layout), codec_of(codec.decoder.spec())
    packed, out = coder.encode(values).clone(), torch.empty(layout.size)
    receiver.decode(packed, layout, out, Workspace())
    assert torch.equal(out, coder.decode(packed))
    assert packed.numel() == codec.nbytes(layout, codec.sent(packed, layout))
    assert receiver.sparse == codec.sparse and receiver.summable == codec.summable
    assert not getattr(receiver, "remembers", False) or isinstance(receiver, Dgc)


# What is refused


@pytest.mark.parametrize(
    "spec",
    [
        None,
        7,
        "top_k",
        [],
        ["top_k"],
        ["top_k", [0.1]],
        ["top_k", {}],
        ["top_k", {"ratio": "0.1"}],
        ["top_k", {"ratio": True}],
        ["top_k", {"ratio": None}],
        ["top_k", {"ratio": 0.0}],
        ["top_k", {"ratio": math.nan}],
        ["top_k", {"ratio": 2**64}],
        ["top_k", {"ratio": [0.1]}],
        ["top_k", {"ratio": 0.1, "other": 1}],
        ["top_k", {"ratio": 0.1, 5: 1}],
        ["top_k", {"ratio": 0.1}, {}],
        [b"top_k", {"ratio": 0.1}],
        ["TopK", {"ratio": 0.1}],
        ["strom", {"threshold": 1.0}],
        ["clip", {"norm": 1.0}],
        ["__class__", {}],
        ["low_rank", {"r": 1.0}],
        ["block_int8", {"block": 2**70}],
        ["random_k", {"ratio": 0.1, "seed": 2**63}],
        ["random_k", {"ratio": 0.1, "seed": -1}],
        ["random_k", {"ratio": 0.1, "shared": 1}],
        ["dgc", {"clip": 1.0}],
        ["error_feedback", {"codec": "top_k"}],
        ["error_feedback", {"codec": ["clip", {"norm": 1.0}]}],
        ["error_feedback", {"codec": ["error_feedback", {"codec": ["sign", {}]}]}],
        ["chain", {}],
        ["chain", {"parts": []}],
        ["chain", {"parts": 3}],
        ["chain", {"parts": "ab"}],
        ["chain", {"parts": [["clip", {"norm": 1.0}]]}],
        ["chain", {"parts": [["sign", {}]], "more": 1}],
        ["chain", {"parts": [["clip", {"norm": 1.0}]] * 100 + [["sign", {}]]}],
    ],
    ids=lambda spec: repr(spec)[:60],
)
def test_odd_data_is_refused(spec: object) -> None:
    with pytest.raises(WireError):
        codec_of(spec)


def test_data_that_is_nested_without_end_is_refused() -> None:
    spec: list[Any] = ["sign", {}]
    for _ in range(10_000):
        spec = ["chain", {"parts": [["clip", {"norm": 1.0}], spec]}]
    with pytest.raises(WireError, match="deep"):
        codec_of(spec)
    shallow: list[Any] = ["sign", {}]
    for _ in range(7):
        shallow = ["chain", {"parts": [["clip", {"norm": 1.0}], shallow]}]
    assert isinstance(codec_of(shallow), Codec)


keys = st.sampled_from(
    ["ratio", "codec", "parts", "norm", "seed", "shared", "r", "threshold", "block", "levels", "clip"]
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(NAMES),
)
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3),
        st.tuples(st.sampled_from([*NAMES, "clip"]), st.dictionaries(keys, inner, max_size=3)).map(list),
    ),
    max_leaves=12,
)


@given(
    st.one_of(
        anything, st.tuples(st.sampled_from(NAMES), st.dictionaries(keys, anything, max_size=3)).map(list)
    )
)
def test_whatever_comes_is_a_codec_or_refused(spec: object) -> None:
    try:
        codec = codec_of(spec)
    except WireError:
        return
    assert codec_of(codec.spec()) == codec


def mutations(spec: Any) -> st.SearchStrategy[Any]:
    """The data of a codec, with something else in one place."""
    if isinstance(spec, list) and spec:
        return st.integers(0, len(spec) - 1).flatmap(
            lambda i: st.one_of(leaves, mutations(spec[i])).map(lambda new: [*spec[:i], new, *spec[i + 1 :]])
        )
    if isinstance(spec, dict) and spec:
        return st.sampled_from(sorted(spec)).flatmap(
            lambda key: st.one_of(leaves, mutations(spec[key])).map(lambda new: {**spec, key: new})
        )
    return leaves


@given(st.sampled_from([*every_codec(), *WRITTEN]).flatmap(lambda codec: mutations(codec.spec())))
def test_a_codec_with_something_else_in_it_is_a_codec_or_refused(spec: object) -> None:
    try:
        codec = codec_of(spec)
    except WireError:
        return
    assert codec_of(codec.spec()).spec() == codec.spec()


@pytest.mark.parametrize("build", [TopK, SampledTopK, RandomK])
@pytest.mark.parametrize("ratio", [0, 0.0, -0.1, 1.0001, math.nan, math.inf, "0.1", None, True, [0.1]])
def test_ratios_are_above_0_and_at_most_1(build: Any, ratio: object) -> None:
    with pytest.raises(UsageError, match="ratio"):
        build(ratio)


@pytest.mark.parametrize("threshold", [0, -1.0, math.nan, math.inf, "1", None, True, 10**400])
def test_thresholds_and_norms_are_finite_and_above_0(threshold: object) -> None:
    with pytest.raises(UsageError, match="threshold"):
        Threshold(threshold)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="norm"):
        Clip(threshold)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{"shared": 1}, {"scaled": None}, {"seed": -1}, {"seed": 1.0}, {"seed": 2**63}]
)
def test_arguments_of_random_k(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        RandomK(0.1, **arguments)
