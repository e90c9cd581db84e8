"""Anything through the wire: a letter, or WireError, and no memory for what isn't there.

Each batch of a thousand inputs comes from one seed; a failure prints the call that replays it.
"""

from __future__ import annotations

import math
import random
import struct
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from fast.core.framing import DTYPES, frame_of, letter_from
from fast.core.letter import Letter
from fast.errors import WireError
from fast.parts.codecs import catalogue
from fast.wire import ITEM_BYTES, STEPS_LIMIT, FrameReader, Header, decode_header

LIMIT = 1 << 16
BATCH = 1000
WORDS = (
    0,
    1,
    2,
    7,
    12,
    63,
    255,
    256,
    4096,
    65535,
    2**16,
    2**31,
    2**32,
    10 * 2**30,
    2**62,
    2**63 - 1,
    2**64 - 1,
)
SPECS: tuple[list[Any], ...] = (
    ["fp16", {}],
    ["qsgd", {"levels": 16}],
    ["top_k", {"ratio": 0.01}],
    ["chain", {"parts": [["clip", {"norm": 1.0}], ["fp16", {}]]}],
    ["error_feedback", {"codec": ["sign", {}]}],
)
KEYS = ("levels", "bucket", "ratio", "threshold", "r", "parts", "codec", "norm")
ATOMS = (None, True, False, 0, -1, 1.5, math.nan, math.inf, "", "gradient", "float32", b"\0\1", *WORDS)


def letters() -> Iterator[Letter]:
    """Sound ones of many kinds."""
    for number, dtype in enumerate(DTYPES.values()):
        raw = torch.arange(48, dtype=torch.uint8) % 2
        yield Letter(number % 3, f"tag {number}", raw.view(dtype).view(3, -1), steps=(number,), view=number)
    for codec in SPECS:
        packed = torch.arange(20, dtype=torch.uint8)
        yield Letter(
            1, "push", packed, (5, 6), codec=codec, dtype=torch.float32, shape=(2, 5), part=(10, 20, 100)
        )
    yield Letter(0, "mix", torch.zeros(0), (), note={"share": 0.5, "words": ["a", ["b"]]}, present=1 << 40)
    yield Letter(2, "sum", torch.ones(100), tuple(range(500)), weight=64.0, version=9)
    yield Letter(2, "scattered", torch.tensor(1.0), tuple(range(0, 99, 3)))


FRAMES = tuple(b"".join(frame_of(letter)) for letter in letters())


# Inputs


def sealed(body: bytes, payload: bytes, announced: int | None = None) -> bytes:
    """A frame around any body, with the right length and checksum of its header."""
    nbytes = len(payload) if announced is None else announced
    prefix = struct.pack("<4sHHQ", b"FAST", 3, len(body), nbytes)
    head = prefix + struct.pack("<I", zlib.crc32(prefix + body)) + body
    return head + bytes(-len(head) % 256) + payload


def parts_of(frame: bytes) -> tuple[bytes, bytes]:
    """Body and payload of a sound frame."""
    length = struct.unpack_from("<H", frame, 6)[0]
    return frame[20 : 20 + length], frame[-(-(20 + length) // 256) * 256 :]


def plain(dice: random.Random, depth: int = 3) -> Any:
    """Any data that msgpack can hold."""
    kind = dice.randrange(10 if depth else 6)
    if kind < 6:
        return dice.choice(ATOMS)
    many = range(dice.randrange(4))
    if kind < 9:
        return [plain(dice, depth - 1) for _ in many]
    return {dice.choice(KEYS): plain(dice, depth - 1) for _ in many}


def flip_bits(dice: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(dice.choice((1, 1, 2, 8))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(data)


def truncate(dice: random.Random, frame: bytes) -> bytes:
    return frame[: dice.randrange(len(frame))]


def splice(dice: random.Random, frame: bytes) -> bytes:
    other = dice.choice(FRAMES)
    return frame[: dice.randrange(len(frame) + 1)] + other[dice.randrange(len(other)) :]


def chain(dice: random.Random, frame: bytes) -> bytes:
    """A sound frame, and something behind it."""
    return frame + dice.choice((flip_bits, truncate, splice, rewrite_body))(dice, dice.choice(FRAMES))


def lie_about_length(dice: random.Random, frame: bytes) -> bytes:
    body, payload = parts_of(frame)
    return sealed(body, payload, dice.choice(WORDS))


def change_field(dice: random.Random, frame: bytes) -> bytes:
    """One field or two are something else; all checksums are right."""
    body, payload = parts_of(frame)
    fields = msgspec.msgpack.decode(body)
    for _ in range(dice.choice((1, 1, 2))):
        fields[dice.randrange(len(fields))] = plain(dice)
    return sealed(msgspec.msgpack.encode(fields), payload, dice.choice((None, None, *WORDS)))


def some(dice: random.Random, most: int) -> list[int]:
    """Whole numbers, small ones and those at the edges."""
    return [dice.choice((dice.randrange(20), dice.choice(WORDS), -1)) for _ in range(dice.randrange(most))]


def lies(dice: random.Random, name: str, payload: bytes) -> Any:
    """Of the right type, and hardly ever true."""
    count = dice.choice(WORDS)
    match name:
        case "sender" | "view" | "version":
            return dice.choice((count, -1))
        case "tag":
            return dice.choice("aü") * dice.randrange(200)
        case "dtype" | "value_dtype":
            return dice.choice((*DTYPES, "qint8", "load", "__class__", ""))
        case "shape" | "value_shape":
            return dice.choice((some(dice, 4), some(dice, 40), [len(payload)], [count, 0, count]))
        case "steps":
            return [[dice.choice(WORDS), dice.choice((1, 2, *WORDS))] for _ in range(dice.choice((1, 2, 40)))]
        case "weight":
            return dice.choice((0.0, -0.0, -1.0, 1e308, math.nan, math.inf, 5))
        case "note":
            return {dice.choice(KEYS): plain(dice)}
        case "present":
            return dice.randbytes(dice.randrange(40))
        case "codec":
            return dice.choice((*SPECS, [plain(dice), {}]))
        case "part":
            return (
                sorted([*some(dice, 9)[:3], 0, 5, 20])[:3] if dice.random() < 0.5 else [count, count, count]
            )
    return dice.choice((None, zlib.crc32(payload), count))


def lie_in_fields(dice: random.Random, frame: bytes) -> bytes:
    """Fields that can be read and aren't true; lengths follow the lie where they can."""
    body, payload = parts_of(frame)
    fields = dict(zip(Header.__struct_fields__, msgspec.msgpack.decode(body), strict=True))
    for name in dice.sample(Header.__struct_fields__, dice.choice((1, 1, 2, 3))):
        fields[name] = lies(dice, name, payload)
    true = math.prod(max(n, 0) for n in fields["shape"]) * ITEM_BYTES.get(fields["dtype"], 1)
    announced = dice.choice((None, true % 2**64))
    if true <= 4096 and dice.random() < 0.5:
        payload = bytes(true)
        fields["checksum"] = zlib.crc32(payload)
        announced = None
    return sealed(msgspec.msgpack.encode(list(fields.values())), payload, announced)


def change_codec(dice: random.Random, frame: bytes) -> bytes:
    body, payload = parts_of(dice.choice(FRAMES[len(DTYPES) : len(DTYPES) + len(SPECS)]))
    fields = msgspec.msgpack.decode(body)
    spec = fields[Header.__struct_fields__.index("codec")]
    match dice.randrange(4):
        case 0:
            spec[0] = dice.choice((*catalogue.CODECS, "clip", "eval", "", 5))
        case 1:
            spec[1] = {dice.choice(KEYS): plain(dice)}
        case 2:
            spec[1] = {"codec": dice.choice(SPECS), "parts": [dice.choice(SPECS) for _ in range(3)]}
        case 3:
            spec.append(plain(dice))
    return sealed(msgspec.msgpack.encode(fields), payload)


def rewrite_body(dice: random.Random, frame: bytes) -> bytes:
    """Bytes of the body are others, which may be msgpack or not; all checksums are right."""
    body, payload = bytearray(parts_of(frame)[0]), parts_of(frame)[1]
    for _ in range(dice.choice((1, 2, 9))):
        body[dice.randrange(len(body))] = dice.choice(
            (0x90, 0xC0, 0xC7, 0xDD, 0xDF, 0xFF, dice.randrange(256))
        )
    return sealed(bytes(body), payload)


def anything(dice: random.Random, frame: bytes) -> bytes:
    match dice.randrange(4):
        case 0:
            return dice.randbytes(dice.randrange(600))
        case 1:
            return sealed(dice.randbytes(dice.randrange(300)), b"")
        case 2:
            return sealed(msgspec.msgpack.encode(plain(dice)), b"")
        case _:
            return sealed(
                b"\x99" + b"\x00\xa1t\xa5uint8\x91\x00\x90\x00\x00\x00\x81\xa1x" + b"\x91" * 2000, b""
            )


MUTATIONS = (
    flip_bits,
    truncate,
    splice,
    chain,
    lie_about_length,
    change_field,
    lie_in_fields,
    lie_in_fields,
    lie_in_fields,
    change_codec,
    rewrite_body,
    anything,
)


def inputs(seed: int) -> Iterator[bytes]:
    dice = random.Random(seed)
    for number in range(BATCH):
        frame = dice.choice(FRAMES)
        yield frame if number % 50 == 0 else dice.choice(MUTATIONS)(dice, frame)


# What becomes of them


def receive(data: bytes, dice: random.Random) -> list[Letter]:
    """As a transport would: in portions, frame after frame, until something is refused."""
    reader, found, at = FrameReader(LIMIT), [], 0
    while at < len(data):
        portion = dice.choice((1 << 20, 256, 100))
        for header, memory in reader.feed(data[at : at + portion]):
            letter = letter_from(header, memory, header.sender)
            assert letter.tensor.numel() * letter.tensor.element_size() == len(memory) <= len(data)
            assert letter.count <= STEPS_LIMIT and 0 <= letter.weight < math.inf
            found.append(letter)
        at += portion
    reader.finish()
    return found


def outcome(data: bytes, dice: random.Random) -> str:
    """A letter, a codec or a refusal; anything else is raised."""
    try:
        codecs = [letter.codec for letter in receive(data, dice) if letter.codec is not None]
    except WireError:
        return "refused"
    try:
        for codec in codecs:
            catalogue.codec_of(codec)
    except WireError:
        return "codec refused"
    return "codec" if codecs else "letter"


def batch(seed: int) -> Counter[str]:
    """A thousand inputs; replay one that fails with list(inputs(seed))[number]."""
    dice, outcomes = random.Random(~seed), Counter[str]()
    try:
        for data in inputs(seed):
            outcomes[outcome(data, dice)] += 1
    except BaseException:
        print(f"replay: batch({seed}), which fails at input {outcomes.total()}")
        raise
    return outcomes


def check(outcomes: Counter[str]) -> None:
    """The inputs were worth it: most are refused, and of everything else there was some."""
    total = outcomes.total()
    assert outcomes["refused"] > total / 2
    assert min(outcomes[each] for each in ("letter", "codec", "codec refused")) > total / 200


def test_twenty_thousand_inputs() -> None:
    check(sum((batch(seed) for seed in range(20)), Counter[str]()))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_inputs() -> None:
    """Half of them are the same every time, half are new."""
    new = random.SystemRandom().randrange(10**6, 10**9)
    print(f"seeds 0 to 499, and {new} to {new + 499}")
    check(sum((batch(seed) for seed in (*range(500), *range(new, new + 500))), Counter[str]()))


def test_no_input_takes_memory_for_what_is_not_there() -> None:
    """A header may stand for some thousands of steps; all else is a small multiple of what was sent."""
    data = [each for seed in range(3) for each in inputs(1000 + seed)]
    dice, largest = random.Random(0), 0
    for each in data:
        tracemalloc.start()
        outcome(each, dice)
        largest = max(largest, tracemalloc.get_traced_memory()[1] - 20 * len(each))
        tracemalloc.stop()
    assert largest < 40 * STEPS_LIMIT + 100_000


@pytest.mark.parametrize("size", range(0, 300, 7))
def test_headers_alone_are_refused_at_every_length(size: int) -> None:
    for frame in FRAMES[:5]:
        if size != 256:
            with pytest.raises(WireError):
                decode_header(frame[:size])
