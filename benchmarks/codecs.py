"""Every codec's speed, size and error: against a copy of memory, and against plain torch.

One thread, one matrix of 10 million float32. A GB/s is a GB of those float32 per second, whatever
they are made to be. The torch expressions are what a user of torch would write to get bytes of the same
kind; those that choose by chance draw from torch's generator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import SimpleNamespace

import torch
from torch import Tensor

import harness
from fast.parts.codecs import CODECS, Codec, Coder
from fast.view import Layout
from harness import Row, Times

ROWS, QUICK_ROWS, COLUMNS = 2500, 250, 4096
RATIO, THETA, LEVELS, BLOCK, BUCKET, R = 0.01, 2.0, 7, 256, 512, 2
COPY, TORCH = "copying memory", "plain torch"
c = SimpleNamespace(**CODECS)

Expression = Callable[[Tensor], tuple[Tensor, ...]]
Inverse = Callable[..., Tensor]


# What a user of torch would write


def cast(dtype: torch.dtype, v: Tensor) -> tuple[Tensor]:
    return (v.to(dtype),)


def cast_back(values: Tensor) -> Tensor:
    return values.float()


def scaled_half(v: Tensor) -> tuple[Tensor, Tensor]:
    scale = v.abs().max()
    return scale, (v / scale).half()


def int8(v: Tensor) -> tuple[Tensor, Tensor]:
    unit = v.abs().max() / 127
    return unit, (v / unit).round().to(torch.int8)


def block_int8(v: Tensor) -> tuple[Tensor, Tensor]:
    blocks = v.view(-1, BLOCK)
    units = blocks.abs().amax(1, keepdim=True) / 127
    return units, (blocks / units).round().to(torch.int8)


def times(scale: Tensor, codes: Tensor) -> Tensor:
    return codes.float() * scale


def qsgd(v: Tensor) -> tuple[Tensor, Tensor]:
    buckets = v.view(-1, BUCKET)
    units = buckets.norm(dim=1, keepdim=True) / LEVELS
    levels = torch.floor(buckets.abs() / units + torch.rand_like(buckets)) * buckets.sign()
    return units, packed((levels + LEVELS).to(torch.uint8), 4)


def qsgd_back(units: Tensor, codes: Tensor) -> Tensor:
    return (unpacked(codes, 4).view(-1, BUCKET).float() - LEVELS) * units


def terngrad(v: Tensor) -> tuple[Tensor, Tensor]:
    clipped = v.clamp(-2.5 * v.std(), 2.5 * v.std())
    scale = clipped.abs().max()
    ternary = (torch.rand_like(v) < clipped.abs() / scale) * v.sign()
    return scale, packed((ternary + 1).to(torch.uint8), 2)


def two_bit(v: Tensor) -> tuple[Tensor, Tensor]:
    codes = 1 + (v >= THETA).to(torch.uint8) - (v <= -THETA).to(torch.uint8)
    return torch.tensor(THETA), packed(codes, 2)


def ternary_back(scale: Tensor, codes: Tensor) -> Tensor:
    return (unpacked(codes, 2).float() - 1) * scale


def column_means(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = v.view(-1, COLUMNS)
    up = rows >= 0
    count = up.sum(1, keepdim=True)
    high = (rows * up).sum(1, keepdim=True) / count
    low = (rows * ~up).sum(1, keepdim=True) / (COLUMNS - count)
    return low, high, packed(up.view(-1).to(torch.uint8), 1)


def sign(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(-1.0), torch.tensor(1.0), packed((v >= 0).to(torch.uint8), 1)


def scaled_sign(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale = v.abs().mean()
    return -scale, scale, packed((v >= 0).to(torch.uint8), 1)


def sides(low: Tensor, high: Tensor, codes: Tensor) -> Tensor:
    return torch.where(unpacked(codes, 1).view(-1, COLUMNS).bool(), high, low)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Several codes in a byte."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return (codes.view(-1, 8 // bits) << shifts).sum(1, dtype=torch.uint8)


def unpacked(codes: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((codes.unsqueeze(1) >> shifts) & ((1 << bits) - 1)).view(-1)


def top_k(v: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.topk(v.abs(), round(RATIO * v.numel()), sorted=False).indices
    return places, v[places]


def random_k(v: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.randperm(v.numel())[: round(RATIO * v.numel())]
    return places, v[places] / RATIO


def beyond(v: Tensor) -> tuple[Tensor, Tensor]:
    places = (v.abs() > THETA).nonzero().view(-1)
    return places, v[places].sign() * THETA


def scattered(size: int, places: Tensor, values: Tensor) -> Tensor:
    return torch.zeros(size).index_copy_(0, places, values)


def low_rank(v: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    matrix = v.view(-1, COLUMNS)
    p, _ = torch.linalg.qr(matrix @ q)
    return p, matrix.T @ p


def product(p: Tensor, q: Tensor) -> Tensor:
    return p @ q.T


# The contest


@dataclass(frozen=True)
class Entry:
    """A codec, and the same in torch where that makes sense."""

    name: str
    codec: Codec
    encode: Expression | None = None
    decode: Inverse | None = None


def entries(size: int) -> Iterator[Entry]:
    back = partial(scattered, size)
    yield Entry("fp16", c.fp16(), partial(cast, torch.float16), cast_back)
    yield Entry("bf16", c.bf16(), partial(cast, torch.bfloat16), cast_back)
    yield Entry("scaled_fp16", c.scaled_fp16(), scaled_half, times)
    yield Entry("int8", c.int8(), int8, times)
    yield Entry("int8(stochastic)", c.int8(stochastic=True))
    yield Entry(f"block_int8({BLOCK})", c.block_int8(BLOCK), block_int8, times)
    yield Entry(f"qsgd({LEVELS}, {BUCKET})", c.qsgd(LEVELS, BUCKET), qsgd, qsgd_back)
    yield Entry("terngrad", c.terngrad(), terngrad, ternary_back)
    yield Entry(f"two_bit({THETA})", c.two_bit(THETA), two_bit, ternary_back)
    yield Entry("column_means", c.column_means(), column_means, sides)
    yield Entry("scaled_sign", c.scaled_sign(), scaled_sign, sides)
    yield Entry("sign", c.sign(), sign, sides)
    yield Entry(f"top_k({RATIO})", c.top_k(RATIO), top_k, back)
    yield Entry(f"sampled_top_k({RATIO})", c.sampled_top_k(RATIO), top_k, back)
    yield Entry(f"random_k({RATIO})", c.random_k(RATIO), random_k, back)
    yield Entry(f"threshold({THETA})", c.threshold(THETA), beyond, back)
    yield Entry(f"low_rank({R})", c.low_rank(R), partial(low_rank, q=torch.randn(COLUMNS, R)), product)
    yield Entry(f"dgc({RATIO})", c.dgc(RATIO))
    yield Entry("one_bit_sgd", c.one_bit_sgd())
    yield Entry("ef_sign", c.ef_sign())
    yield Entry(f"error_feedback(sampled_top_k({RATIO}))", c.error_feedback(c.sampled_top_k(RATIO)))
    yield Entry(f"chain(sampled_top_k({RATIO}), int8)", c.chain(c.sampled_top_k(RATIO), c.int8()))


@dataclass(frozen=True)
class Result:
    """What is known of one codec after its turns."""

    name: str
    times: Times
    gigabytes: float
    """Of float32, uncompressed."""
    share: float
    error: float

    def gbps(self, way: str) -> float:
        return self.gigabytes / median(self.times[way])

    def ratio(self, way: str, peer: str) -> float | None:
        """How many times faster than the peer, if it took part; each repetition gives one ratio."""
        return self.row(way, peer).ratio if _turn(way, peer) in self.times else None

    def row(self, way: str, peer: str) -> Row:
        return harness.compare(f"{self.name} {way}", self.times[way], self.times[_turn(way, peer)], peer)

    def rows(self) -> Iterator[Row]:
        for way in ("encode", "decode"):
            yield from (self.row(way, peer) for peer in (COPY, TORCH) if _turn(way, peer) in self.times)


def _turn(way: str, peer: str) -> str:
    """How the turns of a peer are called that this way is compared with."""
    return COPY if peer == COPY else f"{peer} {way}"


def contest(entry: Entry, values: Tensor, *, repetitions: int, rounds: int) -> Result:
    """Both ways of a codec, those of torch and a copy take turns."""
    layout = Layout.single((values.numel() // COLUMNS, COLUMNS), torch.float32)
    fresh, coder, out = Coder(entry.codec, layout), Coder(entry.codec, layout), torch.empty_like(values)
    first = fresh.encode(values).clone()
    decoded = fresh.decode(first)
    share = first.numel() / layout.nbytes
    error = float((decoded - values).norm() / values.norm())
    contestants: dict[str, harness.Contestant] = {
        "encode": partial(coder.encode, values),
        "decode": partial(fresh.decode, first, out),
        COPY: partial(torch.empty_like(values).copy_, values),
    }
    if entry.encode is not None and entry.decode is not None:
        contestants[_turn("encode", TORCH)] = partial(entry.encode, values)
        contestants[_turn("decode", TORCH)] = partial(entry.decode, *entry.encode(values))
    times = harness.take_turns(contestants, repetitions=repetitions, rounds=rounds, meet=lambda: None)
    return Result(entry.name, times, layout.nbytes / 1e9, share, error)


# What it says


def table(results: list[Result]) -> Iterator[str]:
    width = max(len(result.name) for result in results)
    yield f"{'':{width}}   GB/s           times a copy   times torch    bytes,  relative"
    yield f"{'':{width}}   enc.   dec.    enc.   dec.    enc.   dec.   float32=1  error"
    for result in results:
        cells = [f"{result.gbps(way):7.2f}" for way in ("encode", "decode")]
        for peer in (COPY, TORCH):
            ratios = (result.ratio(way, peer) for way in ("encode", "decode"))
            cells += [" " * 7 if ratio is None else f"{ratio:7.2f}" for ratio in ratios]
        yield f"{result.name:{width}}{''.join(cells)}   {result.share:8.4f}  {result.error:8.4f}"


def bars(results: list[Result]) -> Iterator[tuple[str, float, float]]:
    """What must be reached: how it is called, what was found, what is needed."""
    found = {result.name: result for result in results}
    for name, needed in (("int8", 2.0), ("column_means", 2.0), (f"qsgd({LEVELS}, {BUCKET})", 1.0)):
        for way in ("encode", "decode"):
            yield f"{name} {way}, GB/s", found[name].gbps(way), needed
    sampled = f"sampled_top_k({RATIO})"
    yield f"{sampled} encode, times torch.topk", found[sampled].ratio("encode", TORCH) or 0.0, 5.0


def main() -> None:
    options = harness.options(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    values = torch.randn((QUICK_ROWS if options.quick else ROWS) * COLUMNS)
    effort = {"repetitions": 3, "rounds": 1} if options.quick else {"repetitions": 9, "rounds": 2}
    results = [contest(entry, values, **effort) for entry in entries(values.numel())]
    if options.json:
        harness.report([row for result in results for row in result.rows()], options.json)
    show = harness.note if options.json == "-" else print
    for line in table(results):
        show(line)
    for what, found, needed in bars(results):
        show(f"{'reached' if found >= needed else 'NOT reached'}: {what}: {found:.2f}, needed {needed:g}")
    harness.note(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, this benchmark included")


if __name__ == "__main__":
    main()
