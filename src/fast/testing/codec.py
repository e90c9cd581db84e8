"""The kit for codecs: as many bytes as the formula says, values back, and nothing else touched.

This file checks what holds for every codec, whatever it is given; `promises` checks what a codec
says of itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import msgspec
import torch
from torch import Tensor

from fast.errors import UsageError, WireError
from fast.parts.codecs.base import Codec, Coder, NonFinite, Workspace
from fast.parts.codecs.catalogue import codec_of
from fast.strategies.expression import parse_strategy
from fast.testing.allocations import Allocations
from fast.testing.promises import check_promises
from fast.testing.tensors import (
    LARGE,
    drawn,
    finite_values,
    guarded,
    is_intact,
    near,
    other_values,
    padding,
    same_bits,
    shown,
    some_layouts,
    with_slices,
)
from fast.view import Layout

DRAWS = 2000
SEED = 5
STEPS = 3


def check_codec(
    codec: Codec, layouts: Iterable[Layout] | None = None, *, draws: int = DRAWS, registered: bool = True
) -> None:
    """Fail with AssertionError where this codec breaks its contract.

    Without `layouts` a small model's, matrices, vectors, a scalar and empty tensors are tried, in all
    four kinds of floating point numbers. Layouts that the codec itself refuses (`begin` raises
    UsageError) are left out, but at least one must remain. If it says that it is unbiased, the mean of
    so many `draws` has to agree. A codec that isn't `registered` in the catalogue can't be sent to
    others or named on a command line, and isn't asked to.

    >>> from fast.parts.codecs import CODECS
    >>> check_codec(CODECS["fp16"]())
    """
    given = some_layouts() if layouts is None else layouts
    accepted = [layout for layout in with_slices(given) if _accepts(codec, layout)]
    assert accepted, f"{codec!r} refuses every layout that was tried"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _check_value(codec)
        if registered:
            _check_plain(codec)
            _check_read_back(codec)
        for layout in accepted:
            _check_layout(codec, layout)
        check_promises(codec, accepted, draws)
        for layout in accepted:
            if layout.size >= LARGE:
                _check_memory(codec, layout, f"{codec!r} on {shown(layout)}")


def _accepts(codec: Codec, layout: Layout) -> bool:
    try:
        codec.begin(layout, SEED, torch.device("cpu"))
    except UsageError:
        return False
    return True


def _check_layout(codec: Codec, layout: Layout) -> None:
    for what, values in finite_values(layout):
        trial = _Trial(codec, layout, values, f"{codec!r} on {shown(layout)}, {what}")
        _check_ends(trial)
        _check_rest(trial)
    for what, values in other_values(layout):
        trial = _Trial(codec, layout, values, f"{codec!r} on {shown(layout)}, {what}")
        _check_ends(trial)
        trial.rest()
    where = f"{codec!r} on {shown(layout)}"
    _check_repeats(codec, layout, where)
    _check_resumes(codec, layout, where)
    _check_strange_bytes(codec, layout, where)


# A codec as a value


def _check_value(codec: Codec) -> None:
    hash(codec)
    name = getattr(codec, "name", None)
    assert isinstance(name, str) and repr(codec).startswith(f"{name}("), (
        f"{codec!r} must print as a call of its name, which is {name!r}"
    )


def _check_plain(codec: Codec) -> None:
    """What a receiver builds from the header of a letter is the same codec."""
    for each in (codec, codec.decoder):
        spec = each.spec()
        arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(spec))
        assert arrived == spec, f"{each!r}: its spec {spec} arrives as {arrived}; it must be plain data"
        built = codec_of(arrived)
        assert built == each, f"{each!r}: its spec {spec} builds {built!r}"


def _check_read_back(codec: Codec) -> None:
    text = f"allreduce(codec={codec!r})"
    found = getattr(parse_strategy(text), "codec", None)
    assert found == codec, f"{text} is read as codec {found!r}"


# Both ends


@final
@dataclass(frozen=True)
class _Trial:
    """One encoding of these values by a fresh coder."""

    codec: Codec
    layout: Layout
    values: Tensor
    what: str

    @cached_property
    def packed(self) -> Tensor:
        return Coder(self.codec, self.layout, SEED).encode(self.values.clone()).clone()

    def decoded(self, codec: Codec, filled_with: float = 0.0) -> Tensor:
        """What these bytes stand for, written between two guards."""
        memory, out = guarded(self.layout, filled_with)
        packed = self.packed.clone()
        codec.decode(packed, self.layout, out, Workspace())
        assert is_intact(memory), f"{self.what}: decode wrote before or after `out`"
        assert same_bits(packed, self.packed), f"{self.what}: decode changed the bytes that it was given"
        return out

    def rest(self) -> Tensor:
        """What a fresh state's `encode_rest` leaves; its bytes must be those of `encode`."""
        state, rest = self.codec.begin(self.layout, SEED, torch.device("cpu")), self.values.clone()
        packed = self.codec.encode_rest(rest, self.layout, state, Workspace())
        assert same_bits(packed, self.packed), f"{self.what}: encode_rest gives other bytes than encode"
        return rest


def _check_ends(trial: _Trial) -> None:
    codec, layout, what = trial.codec, trial.layout, trial.what
    coder, values = Coder(codec, layout, SEED), trial.values.clone()
    packed = coder.encode(values)
    assert same_bits(values, trial.values), f"{what}: encode changed the values"
    _check_bytes(trial, packed)
    decoded = trial.decoded(codec, filled_with=torch.nan)
    assert same_bits(decoded, trial.decoded(codec.decoder, filled_with=5.0)), (
        f"{what}: decode gives something else into other memory, or with `decoder`; does it write all of `out`?"
    )
    between = decoded[padding(layout)]
    if codec.non_finite is NonFinite.SPREADS:
        between = between.nan_to_num(nan=0.0)
    assert not between.any(), f"{what}: something else than 0 arrives between the segments"
    assert same_bits(coder.decode(packed), decoded), f"{what}: decode spoils bytes in the same workspace"
    assert same_bits(packed, trial.packed), f"{what}: decode spoils bytes in the same workspace"


def _check_bytes(trial: _Trial, packed: Tensor) -> None:
    codec, layout, what = trial.codec, trial.layout, trial.what
    assert packed.dtype == torch.uint8 and packed.dim() == 1, (
        f"{what}: encode gave {packed.dtype} of shape {tuple(packed.shape)}, not a row of bytes"
    )
    sent = codec.sent(packed, layout)
    expected, most = codec.nbytes(layout, sent), codec.nbytes(layout)
    assert packed.numel() == expected, (
        f"{what}: encode gave {packed.numel()} bytes, and nbytes says {expected} for {sent} values sent"
    )
    assert expected <= most, f"{what}: {expected} bytes, and nbytes says at most {most}"


def _check_rest(trial: _Trial) -> None:
    decoded, rest = trial.decoded(trial.codec), trial.rest()
    needed = torch.nan_to_num(trial.values - decoded, nan=0.0, posinf=0.0, neginf=0.0)
    assert bool(rest.isfinite().all()), f"{trial.what}: encode_rest leaves what isn't finite"
    scale = torch.maximum(trial.values.abs(), decoded.nan_to_num(0.0, 0.0, 0.0).abs())
    assert near(rest, needed, scale), (
        f"{trial.what}: encode_rest leaves {rest.tolist()[:8]}..., and values - decoded is {needed.tolist()[:8]}..."
    )


# One call after another


def _check_repeats(codec: Codec, layout: Layout, where: str) -> None:
    """Bytes depend on the state and the values; not on who else encodes in this process."""
    first, again, other = (Coder(codec, layout, seed) for seed in (SEED, SEED, SEED + 1))
    for step in range(STEPS):
        values = drawn(layout, step)
        packed = first.encode(values).clone()
        other.encode(drawn(layout, 100 + step))
        assert same_bits(again.encode(values), packed), f"{where}: step {step} differs from another coder's"


def _check_resumes(codec: Codec, layout: Layout, where: str) -> None:
    """From its saved state on, a fresh coder gives the same bytes."""
    coder, fresh = Coder(codec, layout, SEED), Coder(codec, layout, SEED + 1)
    for step in range(STEPS):
        coder.encode(drawn(layout, step))
    saved = coder.state_dict()
    expected = [coder.encode(drawn(layout, step)).clone() for step in range(STEPS)]
    try:
        fresh.load_state_dict(saved)
    except (KeyError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{where}: a fresh state can't be what `begin` makes: {error!r}") from error
    for step, packed in enumerate(expected):
        assert same_bits(fresh.encode(drawn(layout, step)), packed), (
            f"{where}: after state_dict and load_state_dict, step {step} gives other bytes"
        )


# Strangers


def _check_strange_bytes(codec: Codec, layout: Layout, where: str) -> None:
    decoder = codec.decoder
    for packed in _strange_bytes(Coder(codec, layout, SEED).encode(drawn(layout, 1)).clone()):
        what = f"{where}: decode of {packed.numel()} strange bytes"
        memory, out = guarded(layout, 0.0)
        try:
            decoder.decode(packed, layout, out, Workspace())
        except WireError:
            continue
        except Exception as error:
            raise AssertionError(f"{what} raised {error!r}, and only WireError is expected") from error
        finally:
            assert is_intact(memory), f"{what} wrote before or after `out`"
        expected = decoder.nbytes(layout, decoder.sent(packed, layout))
        assert packed.numel() == expected, f"{what} took them, and nbytes says {expected}"


def _strange_bytes(honest: Tensor) -> Iterator[Tensor]:
    """Too few, too many, and wrong ones."""
    draw, count = torch.Generator().manual_seed(SEED), honest.numel()
    for fewer in sorted({0, 1, count // 2, count - 4, count - 1}):
        if 0 <= fewer < count:
            yield honest[:fewer].clone()
    for more in (1, 3, 4, 8, 12, count + 16):
        yield torch.cat([honest, torch.randint(256, (more,), dtype=torch.uint8, generator=draw)])
    yield torch.full_like(honest, 255)
    yield torch.full_like(honest, 127)
    yield torch.zeros_like(honest)
    for _ in range(3):
        yield torch.randint(256, (count,), dtype=torch.uint8, generator=draw)
        wrong = torch.rand(count, generator=draw) < 0.1
        yield torch.where(wrong, honest.bitwise_not(), honest)


# Memory


def _check_memory(codec: Codec, layout: Layout, where: str) -> None:
    """After some calls nothing as large as the tensor is allocated any more: not even a byte per value."""
    coder, values, out = Coder(codec, layout, SEED), drawn(layout, 1), drawn(layout, 1)
    coder.encode(1000 * values)  # the more is sent, the more memory is taken
    coder.state, calls = codec.begin(layout, SEED, values.device), []
    for _ in range(2 + STEPS):
        with Allocations() as seen:
            packed = coder.encode(values)
            coder.decode(packed, out)
        calls.append((seen.largest, seen.by, packed))
    largest, by, _ = min(calls[2:], key=lambda call: call[0])
    assert largest < layout.size, f"{where}: {by} allocates {largest} bytes at every call"
    places = {packed.data_ptr() for *_, packed in calls}
    assert len(places) < len(calls), (
        f"{where}: encode gives bytes in other memory every time; take it from the workspace"
    )
